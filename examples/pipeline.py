"""A pipeline: a network in stages on several processes, with the same fingerprint as on one process.

    python examples/pipeline.py

Micro-batches go through two stages; four processes are two pipelines in parallel. Stages, schedule and number of
processes change no bit. Expect 3 equal fingerprints in 30 s on 2 cores (57 CPU seconds).
"""

import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.data.digits import load_digits


def main(name: str, options: dict[str, object]) -> None:
    run = unisono.Run(seed=0, replicas=8, strategy=unisono.strategy(name, **options))
    data = load_digits()
    layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1))]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))
    model, _ = run.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    loader = run.loader(unisono.ArrayDataset(data.train_images, data.train_labels), batch_size=64)
    for batch in run.steps(loader, epochs=2):
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    fingerprint = run.fingerprint()
    if run.world.is_leader:
        print(f"{name} {options} on {run.world.world_size}: {fingerprint}")


if __name__ == "__main__":
    unisono.launch(main, "exact", {}, workers=1)
    unisono.launch(main, "pipeline", {"stages": 2}, workers=2)
    unisono.launch(main, "pipeline", {"stages": 2, "schedule": "gpipe"}, workers=4)
