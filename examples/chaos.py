"""Kill your own training: a worker dies by SIGKILL at two steps, and the weights are those of an undisturbed run.

    python examples/chaos.py

Each start of the job reads from the run directory which steps are done. `unisono chaos SCRIPT` kills from outside, at
moments a seed decides, with more kinds of faults. Expect 2 equal fingerprints in 24 s on 2 cores (48 CPU seconds).
"""

import os
import shutil
import signal
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.data.digits import load_digits

DEADLY = (7, 31)


def main(out: str, deadly: tuple[int, ...]) -> None:
    run = unisono.Run(seed=0, replicas=8, out=out, checkpoint_every=5)
    data = load_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    run.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    loader = run.loader(unisono.ArrayDataset(data.train_images, data.train_labels), batch_size=64)
    for batch in run.steps(loader, epochs=2):
        died_here = Path(out, f"died-at-{batch.step}")
        if batch.step in deadly and run.world.rank == run.world.world_size - 1 and not died_here.exists():
            died_here.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    if run.world.is_leader:
        print(f"{len(list(Path(out).glob('died-at-*')))} kills: {run.fingerprint()}")


if __name__ == "__main__":
    for folder in ("runs/chaos-calm", "runs/chaos-killed"):
        shutil.rmtree(folder, ignore_errors=True)
    unisono.launch(main, "runs/chaos-calm", (), workers=2)
    unisono.launch(main, "runs/chaos-killed", DEADLY, workers=2, max_restarts=len(DEADLY))
