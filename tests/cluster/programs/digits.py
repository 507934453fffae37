"""The digits, through unisono's own loop: the same fingerprint whoever runs it."""

import argparse
import os
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.data.sets.digits import load_digits

KEPT = Path(__file__).parents[3] / "build" / "digits.npz"


def images_and_labels() -> tuple[np.ndarray, np.ndarray]:
    """Return the training digits; kept, since to import scikit-learn in every rank would take longer than to train."""
    if not KEPT.exists():
        KEPT.parent.mkdir(exist_ok=True)
        part = KEPT.with_name(f"{os.getpid()}.npz")
        np.savez(part, **asdict(load_digits()))
        part.replace(KEPT)
    with np.load(KEPT) as arrays:
        return arrays["train_images"], arrays["train_labels"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--step-s", type=float, default=0.0, help="added to each step")
    parser.add_argument("--transport", default="auto")
    options = parser.parse_args()
    run = unisono.Run(seed=options.seed, replicas=4, out=options.out, checkpoint_every=50, transport=options.transport)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
    model, _ = run.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    loader = run.loader(unisono.ArrayDataset(*images_and_labels()), batch_size=64)
    for batch in run.steps(loader, epochs=options.epochs):
        if run.world.is_leader and batch.step % 10 == 1:
            print(f"step {batch.step}", flush=True)
        time.sleep(options.step_s)
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    fingerprint = run.fingerprint()
    if run.world.is_leader:
        print(f"{run.world.launcher} {run.world.world_size} fingerprint {fingerprint}", flush=True)


if __name__ == "__main__":
    main()
