"""What `thousand_kills.py` disturbs: a small training with everything that a checkpoint has to bring back.

``kills_job.py VARIANT FINAL [broken]``: variant 0: momentum, dropout, batch norm, clipping; 1: Adam and a schedule; 2:
as 0, with data loading processes. The last thing it does is to write FINAL: hashes of weights, optimizer and schedule,
and the metrics as exact hex. ``broken``: a resume forgets the optimizer's state, which the comparison must see.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.checkpoint.format import State
from unisono.metrics.base import Accuracy
from unisono.train.trained_parts import Parts

EPOCHS, SAMPLES, BATCH, EVERY = 14, 1280, 32, 8
STEPS = EPOCHS * SAMPLES // BATCH
REPLICAS = 4


class Points:
    """Points in 16 dimensions with a label that a small network can learn."""

    def __init__(self, seed: int, count: int) -> None:
        generator = np.random.default_rng(seed)
        self.x = torch.from_numpy(generator.standard_normal((count, 16), dtype=np.float32))
        self.y = (self.x[:, :4].prod(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def digest(value: object) -> str:
    """Return the SHA-256 of nested dictionaries and lists of tensors and numbers."""
    seen = hashlib.sha256()

    def add(part: object) -> None:
        if isinstance(part, torch.Tensor):
            seen.update(f"{part.dtype}{tuple(part.shape)}".encode() + part.contiguous().numpy().tobytes())
        elif isinstance(part, dict):
            for name in sorted(part, key=str):
                seen.update(f"{name}:".encode())
                add(part[name])
        elif isinstance(part, list | tuple):
            for item in part:
                add(item)
        else:
            seen.update(repr(part).encode())

    add(value)
    return seen.hexdigest()


def forget_moments() -> None:
    """Break restoring: every resume finds the optimizer's moments zero."""
    unpack = Parts.unpack

    def broken(self: Parts, state: State, *fork: Any) -> None:
        unpack(self, state, *fork)
        for entry in self.optimizers[""].state.values():
            for value in entry.values():
                value.zero_()

    Parts.unpack = broken


def train(variant: int, final: Path, *, is_broken: bool = False) -> None:
    """Train to the end, and write `final`."""
    if is_broken:
        forget_moments()
    with unisono.Run(
        seed=variant, replicas=REPLICAS, out=final.parent / "run", checkpoint_every=EVERY, clip_norm=1.0
    ) as run:
        model = nn.Sequential(nn.Linear(16, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 2))
        scheduler = None
        if variant == 1:
            optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        model, optimizer = run.prepare(model, optimizer, scheduler)
        loader = run.loader(Points(variant, SAMPLES), batch_size=BATCH, num_workers=int(variant == 2))
        for batch in run.steps(loader, epochs=EPOCHS):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        seen = run.evaluate(Points(99, 500), lambda micro: (model(micro.x), micro.y), {"accuracy": Accuracy()})
        run.record(seen)
        told = {
            "weights": run.fingerprint(), "optimizer": digest(optimizer.state_dict()),
            "schedule": digest(scheduler.state_dict()) if scheduler else "",
            "metrics": {name: float(value).hex() for name, value in seen.items()},
        }  # fmt: skip
        if run.world.is_leader:
            draft = final.with_suffix(".tmp")
            draft.write_text(json.dumps(told))
            draft.replace(final)


if __name__ == "__main__":
    train(int(sys.argv[1]), Path(sys.argv[2]), is_broken="broken" in sys.argv[3:])
