"""The pieces of a training step outside the strategy, as plain functions."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from unisono.data.loader import move
from unisono.placement import cut
from unisono.strategies.base import Micro


def pin(optimizer: Optimizer) -> None:
    """Settle what an optimizer would choose for itself: ``fused`` off, ``foreach`` on, where they are left open."""
    for group in optimizer.param_groups:
        if "fused" in group and group["fused"] is None:
            group["fused"] = False
        if "foreach" in group and group["foreach"] is None:
            group["foreach"] = not group.get("fused", False)


def hosted_micros(
    num_samples: int, fetched: Iterator[Any], placement: Sequence[range], rank: int, device: torch.device
) -> Iterator[Micro]:
    """Yield a rank's micro-batches of one step, with the replica that computes each.

    Args:
        num_samples: Samples of the whole batch.
        fetched: What the loader yields: only micro-batches with samples, in replica order.
        placement: The replicas each rank hosts.
        rank: This rank.
        device: Where the tensors are moved.
    """
    sizes = [len(part) for part in cut(num_samples, placement[-1].stop)]
    for replica in placement[rank]:
        if sizes[replica]:
            yield Micro(replica=replica, num_samples=sizes[replica], data=move(next(fetched), device))


def update(model: nn.Module, optimizer: Optimizer, scheduler: Any, clip_norm: float | None) -> float:
    """Clip, step the optimizer, step the scheduler; returns the learning rate that the update used (first group)."""
    lr = float(optimizer.param_groups[0]["lr"])
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm, foreach=True)
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
    return lr
