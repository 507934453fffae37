"""Launch, load on one rank, wrap, train, save, continue: the steps of a DDP program, with torch alone, corrected.

    python examples/tour/ddp_by_hand.py

Trains on one process, and on 2 processes that 3 continue after two epochs: none is repeated or left out. Then the same
job by `Run`, whose bits are equal. It takes a quarter of a minute on 2 cores.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import unisono
from unisono.data.sets.digits import load_digits

BATCH = 60  # of all ranks together; 1,200 samples and a batch of 60 divide evenly, so the sampler repeats none


def new_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def samples() -> TensorDataset:
    data = load_digits()
    return TensorDataset(torch.as_tensor(data.train_images[:1200]), torch.as_tensor(data.train_labels[:1200]))


def save(path: Path, state: dict[str, Any]) -> None:
    """Write under another name first: a kill leaves the old file or the new one, never half of one."""
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, pretrained: Path, saved: Path) -> int:
    """Load on rank 0, and give the others what DDP does not: the optimizer's state and the epoch that is next."""
    told: list[Any] = [0, None]
    if dist.get_rank() == 0:
        is_new = not saved.exists()
        state = torch.load(pretrained if is_new else saved, map_location="cpu", weights_only=True)
        model.load_state_dict(state if is_new else state["model"])  # DDP's constructor brings it to the others
        told = told if is_new else [state["epoch"], state["optimizer"]]
    dist.broadcast_object_list(told, src=0)
    if told[1] is not None:
        optimizer.load_state_dict(told[1])
    return int(told[0])


def main(pretrained: Path, saved: Path, epochs: int) -> None:
    """What each process runs; the launcher has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""
    dist.init_process_group("gloo")  # waits until all have come; nccl where every process has a GPU of its own
    rank, size = dist.get_rank(), dist.get_world_size()
    data = samples()
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = load(model, optimizer, pretrained, saved)
    ddp = DistributedDataParallel(model)  # device_ids=[local_rank] on a GPU; nothing on a CPU
    sampler = DistributedSampler(data, shuffle=True, seed=0)  # it asks the group, so it comes after it
    loader = DataLoader(data, batch_size=BATCH // size, sampler=sampler)
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)  # without it every epoch has the same order; the parts are disjoint anyway
        summed = torch.zeros(2)
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(ddp(x), y)
            loss.backward()
            optimizer.step()
            summed += torch.tensor([loss.item() * len(y), len(y)])
        dist.all_reduce(summed)  # one loss over all samples, not one of each rank
        if rank == 0:
            print(f"{size} processes, epoch {epoch}: loss {summed[0] / summed[1]:.6f} over {summed[1]:.0f} samples")
            names = model.state_dict()  # of the model, not of `ddp`: no `module.` in the names
            save(saved, {"model": names, "optimizer": optimizer.state_dict(), "epoch": epoch + 1})
    dist.barrier()  # nobody goes on, and perhaps reads, before the file is there
    dist.destroy_process_group()


def by_run(transport: Any, pretrained: Path) -> str:
    """The same job: launching, loading, sampling, averaging and saving are the run's."""
    run = unisono.Run(seed=0, replicas=6, transport=transport)
    model = new_model()
    run.load_weights(pretrained, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.prepare(model, optimizer)
    loader = run.loader(samples(), batch_size=BATCH)
    for batch in run.steps(loader, epochs=3):
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    return run.fingerprint()


def compare(folder: Path) -> None:
    pretrained = folder / "pretrained.pt"
    torch.manual_seed(0)
    torch.save(new_model().state_dict(), pretrained)
    ends = {}
    for name, launches in {"1": [(1, 3)], "2, then 3": [(2, 2), (3, 3)]}.items():
        for workers, epochs in launches:
            unisono.launch(main, pretrained, folder / f"{name}.pt", epochs, workers=workers)
        ends[name] = torch.load(folder / f"{name}.pt", "cpu", weights_only=True)["model"]
    for name, end in ends.items():
        apart = max((end[key] - ends["1"][key]).abs().max().item() for key in end)
        print(f"on {name}: weights at most {apart:.1e} from those of one process")
        assert apart < 1e-3  # the same batches, added in another order: near, but other bits
        new_model().load_state_dict(end)  # one process, no DDP: the names fit
    found = {size: unisono.run_ranks(lambda rank: by_run(rank, pretrained), size)[0] for size in (1, 2, 3)}
    print(f"by Run on 1, 2, 3: {found[1][:16]} {found[2][:16]} {found[3][:16]}")
    assert found[1] == found[2] == found[3]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        compare(Path(scratch))
