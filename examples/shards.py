"""Data that does not fit into memory: tar shards in webdataset's layout, read by an index that is built once.

    python examples/shards.py

Two workers train on eight shards; one of them dies by SIGKILL, and one worker goes on. The fingerprint is that of one
worker left alone. Each sample comes once an epoch: shards change places, samples change places within windows of three.
Expect 2 equal fingerprints in 11 s on 2 cores (21 CPU seconds).
"""

import io
import os
import shutil
import signal
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import unisono


def write_shards(folder: Path) -> None:
    """Make what `tar --sort=name -cf digits-000.tar ...` would pack: an array and a class for each sample."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for shard in range(8):
        with tarfile.open(folder / f"points-{shard:03d}.tar", "w") as tar:
            for number in range(100 + shard):
                label = number % 4
                point = random.normal(size=16).astype(np.float32) + np.eye(4, 16, dtype=np.float32)[label] * 4
                content = io.BytesIO()
                np.save(content, point)
                for field, value in (("npy", content.getvalue()), ("cls", b"%d" % label)):
                    member = tarfile.TarInfo(f"{shard:03d}-{number:05d}.{field}")
                    member.size = len(value)
                    tar.addfile(member, io.BytesIO(value))


def pair(sample: dict) -> tuple:
    return torch.from_numpy(sample["npy"]), sample["cls"]


def main(out: str, deadly: int | None) -> None:
    train_set = unisono.Shards("runs/points/points-{000..007}.tar", window=3, cache="runs/points-cache")
    run = unisono.Run(seed=0, replicas=4, out=out, checkpoint_every=5)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
    run.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    loader = run.loader(train_set, batch_size=64, transform=pair, num_workers=1)
    right = 0
    for batch in run.steps(loader, epochs=2):
        if batch.step == deadly and run.world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    model.eval()
    with torch.no_grad():
        for sample in train_set:
            x, y = pair(sample)
            right += int(model(x[None]).argmax()) == y
    if run.world.is_leader:
        print(f"{run.fingerprint()}: {100 * right / len(train_set):.1f}% right")


if __name__ == "__main__":
    for name in ("runs/points", "runs/points-cache", "runs/shards-calm", "runs/shards-killed"):
        shutil.rmtree(name, ignore_errors=True)
    write_shards(Path("runs/points"))
    unisono.launch(main, "runs/shards-calm", None, workers=1)
    try:
        unisono.launch(main, "runs/shards-killed", 17, workers=2)
    except unisono.WorkerFailed as failure:
        print(f"rank {failure.rank} was killed")
    unisono.launch(main, "runs/shards-killed", None, workers=1)
