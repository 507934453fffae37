"""Sharded training: every process keeps a slice of weights and moments; the fingerprint does not change.

    python examples/fsdp.py

torch's FSDP2 gathers a module when it is needed; our reduction adds along the same tree as `exact`. Two processes write
a checkpoint; one continues. Expect 2 equal fingerprints in 21 s on 2 cores (42 CPU seconds).
"""

import shutil

import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.data.digits import load_digits


def main(name: str, out: str, epochs: int) -> None:
    with unisono.Run(seed=0, replicas=8, out=out, strategy=name) as run:
        data = load_digits()
        wide = (nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64), nn.LayerNorm(64))
        model = nn.Sequential(nn.Flatten(), *wide, nn.Linear(64, 10))
        model, _ = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=2e-3))
        loader = run.loader(unisono.ArrayDataset(data.train_images, data.train_labels), batch_size=64)
        for batch in run.steps(loader, epochs=epochs):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        fingerprint = run.fingerprint()
        if run.world.is_leader:
            print(f"{name} after {epochs} epochs on {run.world.world_size}: {fingerprint}")


if __name__ == "__main__":
    for folder in ("runs/fsdp", "runs/fsdp-exact"):
        shutil.rmtree(folder, ignore_errors=True)
    unisono.launch(main, "fsdp", "runs/fsdp", 1, workers=2)
    unisono.launch(main, "fsdp", "runs/fsdp", 2, workers=1)
    unisono.launch(main, "exact", "runs/fsdp-exact", 2, workers=2)
