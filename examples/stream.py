"""Data that comes in order and has no length: a generator, shuffled in windows, exact on any number of workers.

    python examples/stream.py

Every rank reads the stream and prepares its part of each batch. One of two workers dies by SIGKILL in the second pass,
and one worker goes on: it reads again what was consumed of that pass, and compares it with what was recorded.
Expect 2 equal fingerprints in 9 s on 2 cores (18 CPU seconds).
"""

import gzip
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import unisono

FILE = Path("runs/measured.jsonl.gz")


def write_file() -> None:
    random = np.random.default_rng(0)
    with gzip.open(FILE, "wt") as file:
        for number in range(1500):
            label = number % 4
            values = random.normal(size=8) + 3 * np.eye(4, 8)[label]
            file.write(json.dumps({"values": values.round(3).tolist(), "label": label}) + "\n")


def measurements() -> Iterator[dict]:
    """Yield one after another; nothing is known of how many there are."""
    with gzip.open(FILE, "rt") as file:
        for line in file:
            yield json.loads(line)


def pair(item: dict) -> tuple:
    return torch.tensor(item["values"]) + 0.1 * torch.randn(8), item["label"]  # keyed by pass and item


def main(out: str, deadly: int | None) -> None:
    run = unisono.Run(seed=0, replicas=4, out=out, checkpoint_every=7)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
    run.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    loader = run.loader(unisono.Stream(measurements, window=200), batch_size=64, transform=pair)
    for batch in run.steps(loader, epochs=2):
        if batch.step == deadly and run.world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    model.eval()
    with torch.no_grad():
        right = [int(model(torch.tensor(item["values"])).argmax()) == item["label"] for item in measurements()]
    if run.world.is_leader:
        print(f"{run.fingerprint()}: {100 * sum(right) / len(right):.1f}% right")


if __name__ == "__main__":
    for name in ("runs/stream-calm", "runs/stream-killed"):
        shutil.rmtree(name, ignore_errors=True)
    FILE.parent.mkdir(exist_ok=True)
    write_file()
    unisono.launch(main, "runs/stream-calm", None, workers=1)
    try:
        unisono.launch(main, "runs/stream-killed", 40, workers=2)
    except unisono.WorkerFailed as failure:
        print(f"rank {failure.rank} was killed")
    unisono.launch(main, "runs/stream-killed", None, workers=1)
