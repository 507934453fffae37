"""Distributed training from scratch, and what usual programs do wrong: shares, sums, rings.

    python examples/tour/from_scratch.py

All ranks run inside this process, so every bit can be compared. It takes some seconds.
"""

import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from unisono.collectives.schedules import bytes_sent, plan, simulate, start
from unisono.data.digits import load_digits


def shares() -> None:
    """Parts by fractions: the golden example, and remainders that are not lost."""
    parts = unisono.DataPartitioner(range(1, 11), [0.7, 0.2, 0.1], seed=1234)
    print([list(parts.use(number)) for number in range(3)])
    for workers in (3, 7, 16):
        whole = unisono.DataPartitioner(range(25_000), [1 / workers] * workers)
        counted = sum(len(whole.use(number)) for number in range(workers))
        truncated = sum(int(1 / workers * 25_000) for _ in range(workers))
        print(f"25,000 samples on {workers} workers: {counted} here, {truncated} where fractions are truncated")
        assert counted == 25_000


def rings() -> None:
    """The ring that sends whole tensors gives each rank other bits from three ranks on; the chunked one does not."""
    for ranks in (2, 3, 4):
        values = [torch.randn(1000, generator=torch.Generator().manual_seed(rank)) for rank in range(ranks)]
        for name in ("naive-ring", "ring", "owner-computes"):
            schedule = plan(name, ranks)
            pieces = [value.tensor_split(schedule.num_chunks) for value in values]
            held = start(schedule, lambda rank, chunk, pieces=pieces: pieces[rank][chunk])
            ends = [torch.cat([end[chunk] for chunk in sorted(end)]) for end in simulate(schedule, held, torch.add)]
            alike = all(torch.equal(end, ends[0]) for end in ends)
            sent = max(bytes_sent(schedule, 4000))
            print(f"{ranks} ranks, {name}: all ranks alike {alike}, {sent} bytes sent by a rank for 4,000")
            assert alike == (name != "naive-ring" or ranks == 2)


def training() -> None:
    """Gradients averaged after backward, by hand as a strategy: the batch is global, so is the loss."""
    data = load_digits()

    def program(transport: object, algorithm: str) -> str:
        strategy = unisono.strategy("allreduce", algorithm=algorithm)
        run = unisono.Run(seed=1234, strategy=strategy, transport=transport)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5))
        loader = run.loader(unisono.ArrayDataset(data.train_images, data.train_labels), batch_size=128)

        def loss(micro: object) -> Tensor:
            return F.nll_loss(model(micro.x).log_softmax(dim=1), micro.y)

        for batch in run.steps(loader, epochs=2):
            run.step(batch, loss)
        return run.fingerprint()

    for algorithm in ("ring", "tree", "naive_ring"):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = unisono.run_ranks(lambda transport, algorithm=algorithm: program(transport, algorithm), 3)
        print(f"{algorithm} on 3 ranks: {[one[:8] for one in found]} {str(told[0].message)[:70] if told else ''}")
        assert len(set(found)) == (3 if algorithm == "naive_ring" else 1)


if __name__ == "__main__":
    shares()
    rings()
    training()
