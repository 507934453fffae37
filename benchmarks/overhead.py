"""What a framework costs per step: a tiny model, one batch a rank, every loop in turn in the same processes.

    make public                     # an environment with the other packages: build/public/bin/python takes them along
    python benchmarks/overhead.py [-n 2] [--samples] [--only LOOP ...] [--rounds 5] [--quick] [--out DIR]

It starts itself with torchrun. Loops of packages that are not installed are left out, and named. Raw is a plain loop;
with several processes, torch's DDP over gloo. All read one batch that is in memory already, so that nothing but the
frameworks is measured; with --samples all read shuffled samples of one data set, each the way its documentation shows:
torch's DataLoader over a TensorDataset, ours an ArrayDataset. Ours keep a run directory: ledger, metrics, progress and
callbacks' agreement are on. The others run bare: no progress bar, no logger, no checkpoints; the rows "bare" of ours
have none either (order, generators, NaN check and checksums cannot be switched off). Every other round runs the loops
backwards. A step's time is the interval between two ends of steps. Told are the medians of the rounds, and how far the
fastest 5 % of a round's steps, which a busy machine disturbs least, are from raw's of the same round.
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
from importlib.util import find_spec

import torch
import torch.distributed as dist
from harness import in_turn, join_world, leave_group, parser_of, rounds_of, save, slug, stop
from results import Bar, Result
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import unisono
from unisono import callbacks

IS_SAMPLED, IS_QUICK = "--samples" in sys.argv, "--quick" in sys.argv
STEPS, BATCH = 30 if IS_QUICK else 300, 32
_draw = torch.Generator().manual_seed(0)  # the same data on all ranks: its fingerprint is compared
X, Y = torch.randn(BATCH, 64, generator=_draw), torch.randint(0, 10, (BATCH,), generator=_draw)


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
    from lightning_fabric import Fabric

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
    import pytorch_lightning as L

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
PACKAGES = {
    "accelerate": "accelerate",
    "Fabric": "lightning_fabric",
    "Lightning Trainer": "pytorch_lightning",
    "ignite": "ignite",
}


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


def chosen(only: list[str]) -> list[str]:
    """Return the loops that are asked for and can be run, raw first; says which cannot."""
    if unknown := set(only) - set(LOOPS):
        stop(f"expected --only to name loops of {list(LOOPS)}, got {sorted(unknown)}")
    wanted = ["raw", *(name for name in only or LOOPS if name != "raw")]
    missing = [name for name in wanted if name in PACKAGES and not find_spec(PACKAGES[name])]
    if missing and dist.get_rank() == 0:
        print(f"left out, their packages are not installed: {', '.join(missing)}", file=sys.stderr)
    return [name for name in wanted if name not in missing]


def main() -> None:
    """Measure on this rank; the leader writes."""
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("-n", type=int, default=1, help="processes (1)")
    parser.add_argument("--samples", action="store_true", help="samples of a data set; else a batch in memory")
    parser.add_argument(
        "--only", action="append", default=[], metavar="LOOP", help="this loop and raw; may be repeated"
    )
    given = parser.parse_args()
    join_world(given.n, torchrun=True)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    ways = {name: partial(measure, LOOPS[name]) for name in chosen(given.only)}
    times = in_turn(ways, rounds_of(given))
    if dist.get_rank() == 0:
        medians = {name: [statistics.median(each) for each in rounds] for name, rounds in times.items()}
        least = {name: [statistics.quantiles(each, n=20)[0] for each in rounds] for name, rounds in times.items()}
        what = "samples of a data set" if given.samples else "a batch in memory"
        common = {"topic": "Steps", "settings": {"processes": size, "steps": STEPS, "input": what}}
        found = []
        for name in times:
            key = slug(f"{name} {size} {'samples' if given.samples else 'memory'}")
            bar = Bar(at_most=30) if name == "unisono Trainer" else None
            over = [one - base for one, base in zip(least[name], least["raw"], strict=True)]
            found += [
                Result.of(
                    key,
                    medians[name],
                    what=f"a tiny step, {name}",
                    unit="µs",
                    peer="raw",
                    against=medians["raw"],
                    **common,
                ),
                Result.of(
                    f"{key}-over-raw",
                    over,
                    what=f"fastest 5 % of tiny steps over raw's, {name}",
                    unit="µs",
                    bar=bar,
                    **common,
                ),
            ]
        save(given, found)
    leave_group()


if __name__ == "__main__":
    main()
