"""The script of the jobs that the command line alone cannot start: ``train.py OUT NAME... [--stop-after STEP]``.

Public names alone, and data computed on the spot: it runs in both trees as it is. Each training gets a directory of its
own below OUT.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import unisono

NUM_SAMPLES, BATCH_SIZE = 101, 24  # five steps an epoch, the last of five samples
CLASSES = 4


def adamw(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)


def adam(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    return torch.optim.Adam(model.parameters(), lr=2e-3), None


def sgd(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training; all of them have batch normalisation and dropout."""

    strategy: str = "exact"
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: Callable[[nn.Module], tuple[torch.optim.Optimizer, Any]] = adamw
    settings: dict[str, Any] = field(default_factory=dict)


CLIPPED = {"clip_norm": 0.5}
TRAININGS = {
    "adamw": Training(settings={"replicas": 8, "detail": True, **CLIPPED}),
    "sgd": Training(optimizer=sgd, settings={"replicas": 5, "detail": True, "clip_value": 0.01}),
    "gloo": Training(settings={"replicas": 8, "transport": "gloo", **CLIPPED}),
    "fsdp": Training(strategy="fsdp", settings={"replicas": 8, **CLIPPED}),
    "fsdp-sgd": Training(strategy="fsdp", optimizer=sgd, settings={"replicas": 5}),
    "pipeline": Training(strategy="pipeline", settings={"replicas": 8, **CLIPPED}),
    "pipeline-interleaved": Training(
        strategy="pipeline", options={"schedule": "interleaved"}, optimizer=adam, settings={"replicas": 4}
    ),
    "ddp": Training(strategy="ddp", optimizer=adam, settings=CLIPPED),
    "ring": Training(strategy="allreduce", options={"algorithm": "ring"}),
    "tree": Training(strategy="allreduce", options={"algorithm": "tree", "bucket_mb": 0.01}, optimizer=sgd),
    "halving-doubling": Training(strategy="allreduce", options={"algorithm": "halving_doubling"}, optimizer=adam),
    "local-sgd": Training(strategy="allreduce", options={"sync_every": 3}, optimizer=sgd),
    "ps": Training(strategy="ps", optimizer=sgd),
    "ps-two-servers": Training(strategy="ps", options={"servers": 2}, optimizer=adam),
    "ps_async": Training(strategy="ps_async", options={"max_staleness": 2}, optimizer=sgd),
    "dp": Training(strategy="dp", options={"devices": 3}),
    "balanced_dp": Training(strategy="balanced_dp", options={"devices": 3, "gpu0_bsz": 4, "batch_chunk": 2}),
    "model_parallel": Training(strategy="model_parallel", optimizer=sgd),
}


def samples(count: int, seed: int) -> unisono.ArrayDataset:
    """Return images of 6x6 random numbers, and a class that two of them tell."""
    x = torch.randn(count, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    return unisono.ArrayDataset(x, (x[:, 0, 0, 0] > 0).long() + 2 * (x[:, 0, 1, 1] > 0.5).long())


def network() -> nn.Module:
    """Return a convolution with batch normalisation, dropout and two linear layers, one after the other."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
        nn.Linear(96, 20), nn.Tanh(), nn.Dropout(0.2), nn.Linear(20, CLASSES),
    )  # fmt: skip


def train(name: str, out: Path) -> None:
    """Train two epochs, and evaluate."""
    training = TRAININGS[name]
    strategy = unisono.strategy(training.strategy, **training.options)
    with unisono.Run(seed=7, threads=1, out=out / name, strategy=strategy, **training.settings) as run:
        model = network()
        optimizer, scheduler = training.optimizer(model)
        trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss(), scheduler=scheduler)
        trainer.fit(
            samples(NUM_SAMPLES, 0), epochs=2, batch_size=BATCH_SIZE, test_set=samples(30, 1), show_progress=False
        )


def train_in_legs(name: str, out: Path, stop_after: int) -> None:
    """Train two epochs in a loop of one's own, from the last checkpoint on, and leave it after a step."""
    training = TRAININGS[name]
    strategy = unisono.strategy(training.strategy, **training.options)
    with unisono.Run(
        seed=7, threads=1, out=out / name, strategy=strategy, checkpoint_every=3, **training.settings
    ) as run:
        model = network()
        optimizer, scheduler = training.optimizer(model)
        model, optimizer = run.prepare(model, optimizer, scheduler)
        for batch in run.steps(run.loader(samples(NUM_SAMPLES, 0), batch_size=BATCH_SIZE), epochs=2):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            if batch.step == stop_after:
                break


def main() -> None:
    """Train what is named, one after the other in these processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="+", choices=TRAININGS)
    parser.add_argument("--stop-after", type=int, help="train in legs; a step that never comes ends the last one")
    given = parser.parse_args()
    for name in given.names:
        if given.stop_after is None:
            train(name, given.out)
        else:
            train_in_legs(name, given.out, given.stop_after)


if __name__ == "__main__":
    main()
