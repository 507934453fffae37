"""What a framework costs per step: a tiny model, one batch a rank, every loop in turn in the same processes.

    pip install -c constraints.txt accelerate lightning pytorch-ignite          # only for this, beside unisono
    python -m torch.distributed.run --standalone --nproc-per-node=1 benchmarks/overhead.py
    python -m torch.distributed.run --standalone --nproc-per-node=2 benchmarks/overhead.py
    python -m torch.distributed.run --standalone --nproc-per-node=1 benchmarks/overhead.py --samples

Raw is a plain loop; with several processes, torch's DDP over gloo. All read one batch that is in memory already, so
that nothing but the frameworks is measured; with --samples all read shuffled samples of one data set, each the way its
documentation shows: torch's DataLoader over a TensorDataset, ours an ArrayDataset. Ours keep a run directory: ledger,
metrics, progress and callbacks' agreement are on. The others run bare: no progress bar, no logger, no checkpoints; the
rows "bare" of ours have none either (order, generators, NaN check and checksums cannot be switched off). Every other
round runs the loops backwards. A step's time is the interval between two ends of steps; the table has the median over
all rounds, the quartiles, the median over rounds of (median - raw's median), and the fastest 5 % of steps, which a busy
machine disturbs least, with their distance from raw's.
"""

import contextlib
import gc
import io
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import unisono
from unisono import callbacks

STEPS, ROUNDS, BATCH = 300, 5, 32
X, Y = torch.randn(BATCH, 64), torch.randint(0, 10, (BATCH,))


class Ready(IterableDataset):
    """Batches in memory."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(STEPS):
            yield X, Y

    def __len__(self) -> int:
        return STEPS


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)


class ReadyByIndex:
    """The same for our loader, which asks by sample numbers."""

    def __len__(self) -> int:
        return dist.get_world_size() * STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index % BATCH], Y[index % BATCH]

    def fetch_micro_batch(self, indices: object) -> tuple[Tensor, Tensor]:
        return X, Y


IS_SAMPLED = "--samples" in sys.argv


def many() -> tuple[Tensor, Tensor]:
    count = dist.get_world_size() * STEPS
    return X.repeat(count, 1), Y.repeat(count)


def batches() -> DataLoader:
    if not IS_SAMPLED:
        return DataLoader(Ready(), batch_size=None)
    dataset = TensorDataset(*many())
    return DataLoader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset))


def samples() -> object:
    return unisono.ArrayDataset(*many()) if IS_SAMPLED else ReadyByIndex()


def raw(tick: Callable[[], None]) -> None:
    model, optimizer = build()
    wrapped = DistributedDataParallel(model) if dist.get_world_size() > 1 else model
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
        tick()


def run_loop(tick: Callable[[], None], *, is_bare: bool = False) -> None:
    size = dist.get_world_size()
    with tempfile.TemporaryDirectory() as out, unisono.Run(replicas=size, out=None if is_bare else shared(out)) as run:
        model, optimizer = build()
        run.prepare(model, optimizer)
        for batch in run.steps(run.loader(samples(), batch_size=BATCH * size), epochs=1):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            tick()


class Ticks(callbacks.Callback):
    draws = False

    def __init__(self, tick: Callable[[], None]) -> None:
        self.tick = tick

    def on_step_end(self, loop: callbacks.Loop) -> None:
        self.tick()


def trainer(tick: Callable[[], None], *, is_bare: bool = False) -> None:
    size = dist.get_world_size()
    with tempfile.TemporaryDirectory() as out, unisono.Run(replicas=size, out=None if is_bare else shared(out)) as run:
        model, optimizer = build()
        own = [Ticks(tick), *([] if is_bare else [callbacks.LearningRateMonitor()])]
        fitting = unisono.Trainer(run, model, optimizer, loss=F.cross_entropy, callbacks=own)
        fitting.fit(samples(), epochs=1, batch_size=BATCH * size, show_progress=not is_bare)


def accelerated(tick: Callable[[], None]) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(*build(), batches())
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        tick()


def fabric(tick: Callable[[], None]) -> None:
    from lightning.fabric import Fabric

    size = dist.get_world_size()
    fabric = Fabric(accelerator="cpu", devices=size, strategy="ddp" if size > 1 else "auto")
    fabric.launch()
    model, optimizer = fabric.setup(*build())
    for x, y in fabric.setup_dataloaders(batches(), use_distributed_sampler=False):
        optimizer.zero_grad()
        fabric.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        tick()


def lightning(tick: Callable[[], None]) -> None:
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.optimizer = build()

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            return F.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.optimizer

    class Tick(L.Callback):
        def on_train_batch_end(self, *_: object) -> None:
            tick()

    size = dist.get_world_size()
    L.Trainer(
        accelerator="cpu", devices=size, strategy="ddp" if size > 1 else "auto", max_epochs=1, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False, callbacks=[Tick()],
        use_distributed_sampler=False,
    ).fit(Module(), batches())  # fmt: skip


def ignite(tick: Callable[[], None]) -> None:
    from ignite.engine import Engine, Events

    model, optimizer = build()
    wrapped = DistributedDataParallel(model) if dist.get_world_size() > 1 else model

    def step(_: Engine, batch: tuple[Tensor, Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(wrapped(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    engine = Engine(step)
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda _: tick())
    engine.run(batches(), max_epochs=1)


LOOPS = {
    "raw": raw, "unisono Run": run_loop, "unisono Run, bare": partial(run_loop, is_bare=True),
    "unisono Trainer": trainer, "unisono Trainer, bare": partial(trainer, is_bare=True),
    "accelerate": accelerated, "Fabric": fabric, "Lightning Trainer": lightning, "ignite": ignite,
}  # fmt: skip


def shared(out: str) -> str:
    """Return the leader's directory on all ranks."""
    names = [out]
    dist.broadcast_object_list(names)
    return names[0]


def measure(loop: Callable[[Callable[[], None]], None]) -> list[float]:
    """Return the intervals between steps in microseconds, the first tenth left out."""
    ends: list[float] = []
    torch.use_deterministic_algorithms(False)  # which our runs switch on, and the others would inherit
    gc.collect()
    dist.barrier()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        loop(lambda: ends.append(time.perf_counter()))
    return [(b - a) * 1e6 for a, b in zip(ends[STEPS // 10 :], ends[STEPS // 10 + 1 :], strict=False)]


def main() -> None:
    """Measure on this rank; the leader prints."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    chosen = [name for name in sys.argv[1:] if name != "--samples"] or list(LOOPS)
    times: dict[str, list[list[float]]] = {name: [] for name in chosen}
    for round_number in range(ROUNDS + 1):
        for name in chosen if round_number % 2 else chosen[::-1]:
            found = measure(LOOPS[name])
            if round_number:  # the first round warms up
                times[name].append(found)
    if dist.get_rank() == 0:
        what = "samples of a data set" if IS_SAMPLED else "a batch in memory"
        print(f"{dist.get_world_size()} processes, {what}, {ROUNDS} rounds of {STEPS} steps, microseconds a step")
        print(f"{'loop':<22} {'median':>8} {'quartiles':>15} {'over raw':>9} {'fastest 5%':>11} {'over raw':>9}")
        least = statistics.quantiles([value for each in times[chosen[0]] for value in each], n=20)[0]
        base = [statistics.median(each) for each in times[chosen[0]]]
        for name, rounds in times.items():
            pooled = [value for each in rounds for value in each]
            low, median, high = statistics.quantiles(pooled, n=4)
            fastest = statistics.quantiles(pooled, n=20)[0]
            over = statistics.median(statistics.median(each) - one for each, one in zip(rounds, base, strict=True))
            print(
                f"{name:<22} {median:>8.0f} {low:>7.0f}-{high:<7.0f} {over:>9.0f} {fastest:>11.0f} "
                f"{fastest - least:>9.0f}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
