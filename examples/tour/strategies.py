"""Synchronous and asynchronous, server and ring, one GPU with a smaller share: the strategies side by side.

    python examples/tour/strategies.py

All ranks run inside this process (the asynchronous server needs real ones: examples/parameter_server.py).
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.data.digits import load_digits


def train(transport: Any, name: str, options: dict[str, Any], replicas: int | None = None) -> tuple[str, int]:
    """Return fingerprint and bytes that this rank has sent."""
    run = unisono.Run(seed=0, replicas=replicas, strategy=unisono.strategy(name, **options), transport=transport)
    data = load_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(unisono.ArrayDataset(data.train_images, data.train_labels), batch_size=64)
    for batch in run.steps(loader, epochs=1):
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    return run.fingerprint(), run.transport.bytes_sent


def train_on(ranks: int, name: str, replicas: int | None = None, **options: Any) -> str:
    """Train on some ranks, print what was sent, return the fingerprint."""
    found = unisono.run_ranks(lambda transport: train(transport, name, options, replicas), ranks)
    sent = ", ".join(f"{count / 1e3:.0f}" for _, count in found)
    print(f"{name} {options or ''} on {ranks}: {found[-1][0][:16]}  kilobytes sent by each rank: {sent}")
    return found[-1][0]


if __name__ == "__main__":
    # A server that waits for its two workers computes what the two would compute with an all-reduce among themselves,
    # but all bytes pass through it.
    assert train_on(3, "ps") == train_on(2, "allreduce", algorithm="tree")
    # A ring adds each chunk in another order than the tree, from three ranks on; between two there is only one order.
    assert train_on(2, "allreduce", algorithm="ring") == train_on(2, "allreduce", algorithm="tree")
    assert train_on(3, "allreduce", algorithm="ring") != train_on(3, "allreduce", algorithm="tree")
    # DataParallel in one process; the first device takes 10 samples of 64. And what the result does not depend on:
    train_on(1, "balanced_dp", devices=2, gpu0_bsz=10)
    assert (
        train_on(1, "exact", replicas=4)
        == train_on(3, "exact", replicas=4)
        == train_on(2, "exact", replicas=4, shares=(3, 1))
    )
