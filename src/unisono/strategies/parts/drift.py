"""Ranks whose weights are no longer the same bits are named, with the first parameter and the step.

The heads compared are a step number and one checksum over all weights; only when they differ are the parameters
compared one by one.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from unisono.collectives.transport import Transport
from unisono.determinism.switches import checksum, checksums
from unisono.errors import RankDivergence


class Head(NamedTuple):
    """What a rank says of itself: the step it is at, the checksum of its weights, whether its model is training."""

    step: int
    weights: int
    is_training: int = 1


def compare(
    heads: Sequence[Head],
    tensors: Mapping[str, Tensor],
    transport: Transport,
    groups: Sequence[Sequence[int]] | None = None,
) -> None:
    """Stop all ranks alike where one is at another step or holds other weights; collective only then.

    The most frequent head is taken for the right one, the lowest rank's among equals.

    Args:
        heads: Of all ranks, in rank order, the same list on all of them.
        tensors: This rank's weights by name, in the model's order.
        transport: Joins the ranks.
        groups: Ranks that must hold the same weights; None: all of them.

    Raises:
        RankDivergence: Names the rank, the step and the first tensor that differs.
    """
    found = None
    for group in groups or [range(len(heads))]:
        own = [heads[rank] for rank in group]
        usual = max(own, key=own.count)
        strays = [rank for rank in group if heads[rank] != usual]
        if strays and found is None:
            found = usual, strays, group[own.index(usual)]
    if found is None:
        return
    usual, strays, regular = found
    stray, head = strays[0], heads[strays[0]]
    more = f" So does rank {', '.join(map(str, strays[1:]))}." if strays[1:] else ""
    if head[:2] == usual[:2]:
        modes = ("evaluation", "training")
        raise RankDivergence(
            f"step {usual.step}: the model of rank {stray} is in {modes[head.is_training]} mode, those of the others "
            f"in {modes[usual.is_training]} mode.{more} Hint: model.train() after an evaluation, also where one rank "
            "evaluates."
        )
    every = transport.all_gather_json(checksums(tensors))
    theirs, others = every[stray], every[regular]
    differing = [name for name in others if theirs.get(name) != others[name]]
    where = f", first in {differing[0]!r} ({len(differing)} of {len(others)} tensors)" if differing else ""
    told = [f"is at step {head.step}"] * (head.step != usual.step)
    told += [f"holds other weights than the others{where}"] * (head.weights != usual.weights)
    raise RankDivergence(
        f"step {usual.step}: rank {stray} {' and '.join(told)}.{more} Hint: nothing but "
        "the optimizer may change weights between steps, and all ranks must change them alike. A forward pass in "
        "training mode moves BatchNorm's statistics: model.eval() where one rank evaluates. "
        f"(Checksums: {head.weights:016x}, the others' {usual.weights:016x}.)"
    )


def compare_now(model: nn.Module, transport: Transport, step: int) -> None:
    """Compare the parameters and buffers that the ranks hold now; collective.

    For strategies that do not do it in every step; costs one pass over the weights and a message of 16 bytes.
    """
    if transport.world_size == 1:
        return
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    mine = [step, checksum(tensors.values())]
    compare([Head(*head) for head in transport.all_gather_json(mine)], tensors, transport)
