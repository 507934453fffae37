"""With Horovod: the optimizer is wrapped, the first weights are broadcast, the learning rate grows with the ranks.

horovodrun -np 2 python horovod_before.py
"""

import horovod.torch as hvd
import torch
from digits import BATCH_SIZE, EPOCHS, Net, datasets
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    hvd.init()
    torch.manual_seed(0)
    train_set, test_set = datasets()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train_set, batch_size=BATCH_SIZE, sampler=sampler)  # of each rank
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
    model.eval()
    mine = DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    with torch.no_grad():
        hits = [(model(x).argmax(dim=1) == y).float().mean() for x, y in DataLoader(test_set, 256, sampler=mine)]
    accuracy = hvd.allreduce(torch.stack(hits).mean(), name="accuracy")  # a mean of means
    if hvd.rank() == 0:
        print(f"accuracy {accuracy.item():.4f}")
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
