"""What every strategy must do, as programs that ranks run: threads of one process, or processes.

Each program returns named claims; all must be true on every rank.
"""

import contextlib
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from jobs import digits, digits_for_test
from ranks import join
from unisono.collectives.placement import cut
from unisono.collectives.transport import Transport
from unisono.strategies.catalog import find
from unisono.strategies.options import StrategyOptions

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": ("exact", {}),
    "islands": ("exact", {"island_steps": 2, "outer_lr": 1.0, "outer_momentum": 0.0}),
    "ddp": ("ddp", {"find_unused_parameters": True}),
    "allreduce": ("allreduce", {}),
    "allreduce-tree": ("allreduce", {"algorithm": "tree", "bucket_mb": 0.01}),
    "local-sgd": ("allreduce", {"sync_every": 3}),
    "ps": ("ps", {}),
    "ps-2": ("ps", {"servers": 2}),
    "fsdp": ("fsdp", {}),
    "model_parallel": ("model_parallel", {}),
    "dp": ("dp", {"devices": 3}),
    "balanced_dp": ("balanced_dp", {"devices": 3, "gpu0_bsz": 4, "batch_chunk": 2}),
    "pipeline": ("pipeline", {}),
    "pipeline-gpipe": ("pipeline", {"schedule": "gpipe", "stages": 3}),
    "pipeline-interleaved": ("pipeline", {"schedule": "interleaved"}),
    "ps_async": ("ps_async", {"max_staleness": 2}),
    "ps_async-0": ("ps_async", {"max_staleness": 0}),
}
"""Name, options."""

AS_PLAIN = {name for name in CASES if name not in ("islands", "local-sgd", "ps_async")}
"""Those that compute what one device would, up to rounding."""


class Claims(dict[str, bool]):
    """Named truths."""

    def __getattr__(self, name: str) -> bool:
        return self[name]


@contextlib.contextmanager
def run_of(transport: Transport | None, case: str, **settings: Any) -> Iterator[unisono.Run]:
    """Yield a run with the strategy of a case."""
    warnings.filterwarnings("ignore", message="the run ends .* after its islands have met")
    name, options = CASES[case]
    chosen: StrategyOptions = find(name, options)
    run = unisono.Run(**{"seed": 0, "strategy": chosen, "transport": transport or "auto", **settings})
    with run:
        yield run


def mlp() -> nn.Module:
    """Return a small model for the digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def loss_of(model: nn.Module) -> Callable[[Any], Tensor]:
    """Return the usual loss."""
    return lambda micro: F.cross_entropy(model(micro.x), micro.y)


def learns(transport: Transport | None, case: str, data: str) -> dict[str, bool]:
    """Train digits with the trainer: above 90 %, with the metrics of the weights that it leaves, equal on all ranks."""
    with run_of(transport, case) as run:
        model = mlp()
        trainer = unisono.Trainer(run, model, torch.optim.Adam(model.parameters(), lr=8e-3), loss=nn.CrossEntropyLoss())
        test_set = digits_for_test(data)
        result = trainer.fit(digits(data, 1437), epochs=3, batch_size=64, test_set=test_set, show_progress=False)
        accuracy = result["metrics"]["test_accuracy"]
        told = run.transport.all_gather_json([result["fingerprint"], result["metrics"]])
        right = torch.tensor(0)
        with run._prepared().strategy.reading(), torch.no_grad():  # all ranks, in equal calls
            right = (trainer.model(test_set.arrays[0]).argmax(1) == test_set.arrays[1]).sum()
        return {
            "above 90 %": accuracy > 0.9,
            "ranks agree": all(item == told[0] for item in told),
            "evaluation": abs(accuracy - int(right) / len(test_set)) < 1e-12,
            "strategy": result["strategy"] == CASES[case][0],
        }


def batch_norm_model() -> nn.Module:
    """Return a small model with buffers and dropout."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 10))


def resumes(transport: Transport | None, case: str, data: str) -> dict[str, bool]:
    """A run stopped at a checkpoint and resumed has the bits of one that was not, weights and moments."""

    def play(out: str, steps: int) -> tuple[str, int, dict[str, Any]]:
        with run_of(transport, case, out=out, checkpoint_every=3) as run:
            model = batch_norm_model()
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            front, optimizer = run.prepare(model, optimizer, scheduler)
            done = 0
            for batch in run.steps(run.loader(digits(data, 100), batch_size=20), epochs=2, max_steps=steps):
                run.step(batch, loss_of(front))
                done += 1
            parts = run._prepared()
            parts.strategy.settle()
            tensors = parts.pack().tensors
            packed = tensors["optimizer"] | tensors.get("islands", {})
            return run.result()["fingerprint"], done, {key: value.clone() for key, value in packed.items()}

    joined = join(transport)
    with tempfile.TemporaryDirectory() as folder:
        out = joined.all_gather_json(folder)[0]
        through, _, moments = play(f"{out}/a", 9)
        half, _, _ = play(f"{out}/b", 3)
        resumed, done, again = play(f"{out}/b", 9)
        joined.barrier()
    is_racing = case == "ps_async" and joined.world_size > 2  # whose push comes first is anybody's guess
    same = all(torch.equal(moments[key], again[key]) for key in moments) and moments.keys() == again.keys()
    return {
        "same bits": resumed == through or is_racing,
        "resumed": done == 6,
        "control": half != through,
        "moments": joined.rank > 0 or ((same or is_racing) and bool(moments)),
    }


class Parts(nn.Module):
    """A row of layers with one that is frozen, and a part that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten, self.squash = nn.Flatten(), nn.Tanh()
        self.used, self.frozen, self.unused = nn.Linear(64, 10), nn.Linear(10, 10), nn.Linear(64, 10)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        scores: Tensor = self.frozen(self.squash(self.used(self.flatten(x))))
        return scores


def plain_weights(model: nn.Module, run: unisono.Run, loader: Any, steps: int, clip: dict[str, float]) -> list[Tensor]:
    """Return what a plain loop over the same batches makes of a model."""
    optimizer = torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1, momentum=0.9
    )
    dataset = loader.fetcher.dataset
    for step in range(1, steps + 1):
        x, y = dataset.fetch_micro_batch(loader.sampler.batch(step))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if "clip_norm" in clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip["clip_norm"])
        if "clip_value" in clip:
            nn.utils.clip_grad_value_(model.parameters(), clip["clip_value"])
        optimizer.step()
    return [value.clone() for value in model.state_dict().values()]


def as_plain(transport: Transport | None, case: str, data: str) -> dict[str, bool]:
    """Unused and frozen parameters, clipping, uneven micro-batches and a last batch of one sample: as a plain loop."""
    found: dict[str, bool] = {}
    for clip, build in [({}, Parts), ({}, mlp), ({"clip_norm": 0.05}, Parts), ({"clip_norm": 0.05}, mlp),
                        ({"clip_value": 2e-3}, Parts)]:  # fmt: skip
        with run_of(transport, case, **clip) as run:
            torch.manual_seed(0)
            model, reference = build(), build()
            reference.load_state_dict(model.state_dict())
            first = {name: value.clone() for name, value in model.state_dict().items()}
            optimizer = torch.optim.SGD(
                [parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1, momentum=0.9
            )
            front, _ = run.prepare(model, optimizer)
            loader = run.loader(digits(data, 34), batch_size=11)  # the last batch has one sample
            losses = [run.step(batch, loss_of(front)) for batch in run.steps(loader, epochs=2)]
            expected = plain_weights(reference, run, loader, len(losses), clip)
            with run._prepared().strategy.reading():
                packed = run._prepared().pack().tensors["model"]
            names = list(reference.state_dict())
            close = [
                torch.allclose(packed[name], value, atol=1e-5) for name, value in zip(names, expected, strict=True)
            ]
            key = f"{build.__name__} {clip}"
            found[f"{key} as plain"] = all(close) or case not in AS_PLAIN
            found[f"{key} finite"] = all(loss == loss and loss < 50 for loss in losses)
            if build is Parts:
                still = [torch.equal(packed[name], first[name]) for name in names if not name.startswith("used")]
                found[f"{key} frozen and unused keep their bits"] = all(still)
                found[f"{key} control"] = not torch.equal(packed["used.weight"], first["used.weight"])
    return found


PROGRAMS = {program.__name__: program for program in (learns, resumes, as_plain)}


def play_all(transport: Transport | None, cases: list[str], data: str) -> dict[str, dict[str, bool]]:
    """Run all programs of some cases; the ranks stay joined between them."""
    joined = join(transport)
    answers = {f"{case} {name}": program(transport, case, data) for case in cases for name, program in PROGRAMS.items()}
    joined.barrier()
    return answers


def loses_a_rank(transport: Transport | None, case: str, data: str, lost: int, log: str) -> None:
    """The rank `lost` kills itself in its fourth step; the others write down what they are told."""
    with run_of(transport, case) as run:
        model = mlp()
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        steps = run.steps(run.loader(digits(data, 400), batch_size=8), epochs=5)
        try:
            for batch in steps:
                if batch.step == 4 and run.world.rank == lost:
                    os.kill(os.getpid(), signal.SIGKILL)
                run.step(batch, loss_of(front))
        except BaseException as error:
            Path(log, f"{run.world.rank}.txt").write_text(f"{type(error).__name__}: {error}")
            raise


__all__ = ["AS_PLAIN", "CASES", "PROGRAMS", "cut", "loses_a_rank", "play_all"]
