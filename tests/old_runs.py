"""A tiny training whose run directories are kept as old versions wrote them (``fixtures/runs-VERSION/``).

``make(DIR)`` writes them anew with the version at hand; a later version has to go on with them. Data and initial
weights come from whole numbers and divisions by powers of two alone, so they are the same on every machine.
"""

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.collectives.transport import Transport

NUM_SAMPLES, BATCH_SIZE = 28, 6  # five steps an epoch, the last one short
RUNS = ("finished", "killed", "two-workers")


def train(
    transport: Transport | None, out: str, *, epochs: int = 2, die_at: int = 0, allow_drift: bool = False
) -> dict[str, Any]:
    """Train, or go on; return fingerprint, the steps that were done, and what ``result.json`` holds.

    Args:
        transport: Joins the ranks; None: the world at hand.
        out: The run directory.
        epochs: Passes over the data.
        die_at: SIGKILL this process instead of running that step.
        allow_drift: On another machine than where the directory was begun.
    """
    generator = torch.Generator().manual_seed(0)
    data = unisono.ArrayDataset(
        torch.rand(NUM_SAMPLES, 6, generator=generator), torch.randint(0, 4, (NUM_SAMPLES,), generator=generator)
    )
    with unisono.Run(
        seed=3, replicas=4, out=out, threads=1, checkpoint_every=3, clip_norm=0.5,
        settings={"job": "old", "sizes": (6, 4)}, checkpoints=unisono.CheckpointPolicy(in_background=False),
        allow_drift=allow_drift, transport=transport or "auto",
    ) as run:  # fmt: skip
        model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.25), nn.Linear(5, 4))
        # Nothing that names its settings otherwise in another torch: they are part of the score.
        model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=2**-4, momentum=0.5))
        run.register("average", torch.optim.swa_utils.AveragedModel(model))
        done = []
        for batch in run.steps(run.loader(data, batch_size=BATCH_SIZE), epochs=epochs):
            if batch.step == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            done.append(batch.step)
        run.record({"steps_done": len(done)} if done else {})
        return {"fingerprint": run.fingerprint(), "done": done, "result": run.result()}


def make(folder: str) -> None:
    """Write the directories: one that has ended, one that was killed before step 9, one of two workers in its midst."""
    from ranks import run_processes  # imports the launcher

    train(None, str(Path(folder, "finished")))
    run_processes(train_one_epoch, 2, str(Path(folder, "two-workers")))
    child = os.fork()
    if child == 0:
        train(None, str(Path(folder, "killed")), die_at=9)
    os.waitpid(child, 0)


def train_one_epoch(transport: Transport | None, out: str) -> dict[str, Any]:
    """Train the first of two epochs."""
    return train(transport, out, epochs=1)
