"""The pieces of a training step outside the strategy, as plain functions."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from unisono.data.loader import move
from unisono.data.sampler import Indices
from unisono.errors import NonFiniteError
from unisono.placement import cut
from unisono.strategies.base import Micro

_NUM_SHOWN = 16


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


def non_finite(step: int, indices: Indices, replicas: int, bad_replicas: tuple[int, ...]) -> NonFiniteError:
    """Return the error that names step, replicas and samples; the step has changed nothing."""
    first = cut(len(indices), replicas)[bad_replicas[0]]
    ids = indices[first.start : first.stop].tolist()
    shown = f"{ids[:_NUM_SHOWN]}{' ...' if len(ids) > _NUM_SHOWN else ''}"
    return NonFiniteError(
        f"step {step}: loss or gradient is NaN or infinite in replica {', '.join(map(str, bad_replicas))} of "
        f"{replicas}; samples of replica {bad_replicas[0]}: {shown}. "
        f"The weights are those of step {step - 1}. "
        "Hint: look at these samples, lower the learning rate, or set clip_norm.",
        step=step,
        replicas=bad_replicas,
    )
