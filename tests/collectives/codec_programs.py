"""What every rank does in the tests of coded messages: the same buckets with and without the codec, over gloo."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from collectives.rank_programs import error_of
from reference import bits, pairwise_sum, random_leaves
from unisono.collectives import process_groups
from unisono.collectives.exchange import Exchange, exchange_over
from unisono.collectives.pieces import padded_length
from unisono.collectives.placement import place_evenly
from unisono.collectives.process_groups.exchange import PieceExchange
from unisono.collectives.process_groups.transport import connect
from unisono.collectives.tree import accumulate
from unisono.world import World

LEAVES, LENGTHS = 5, (12_000, 40, 50_000)
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def leaves_of(length: int, dtype: torch.dtype, seed: int) -> list[Tensor]:
    """Return gradients: most of them small, a third zero, and the bits that arithmetic likes to lose."""
    values = random_leaves(LEAVES, [length], torch.float64, seed=seed)
    for number, value in enumerate(values):
        value.mul_(1e-3)
        value[torch.arange(length) % 3 == 0] = 0.0
        value[7] = -0.0
        value[8] = torch.inf if number == 1 else 1.0
    return [value.to(dtype) for value in values]


def step(
    exchange: Exchange, placement: list[range], rank: int, buckets: Sequence[Sequence[Tensor]]
) -> list[tuple[bytes, bytes]]:
    """Sum buckets of some leaves; return the bits of each sum, and those of the tree."""
    outs = [torch.full_like(leaves[0], 7.0) for leaves in buckets]
    exchange.start(outs, placement, LEAVES)
    for leaves in buckets:
        mine = iter([leaves[leaf].clone() for leaf in placement[rank]])
        exchange.give(accumulate(placement[rank].start, mine, LEAVES, torch.add))
    exchange.finish()
    return [(bits(out), bits(pairwise_sum(leaves, torch.add))) for out, leaves in zip(outs, buckets, strict=True)]


def exchange_in_all_modes(transport: None) -> dict[str, Any]:
    """Return for each mode whether all sums are the tree's, and the bytes sent; what unequal modes come to.

    ``room``: the same with little room for what arrives, and the elements kept for it.
    """
    transport_ = connect(World.current(), timeout_s=60, share_memory=False)
    rank, size = transport_.rank, transport_.world_size
    placement, exchange = place_evenly(LEAVES, size), exchange_over(transport_)
    found: dict[str, Any] = {}
    for mode in ("none", "planes", "auto"):
        exchange.choose_codec(mode)
        found[mode] = []
        for number in range(4):
            buckets = [
                leaves_of(padded_length(length, size), dtype, seed=number) for dtype in DTYPES for length in LENGTHS
            ]
            before = transport_.bytes_sent
            sums = step(exchange, placement, rank, buckets)
            found[mode].append([all(ours == tree for ours, tree in sums), transport_.bytes_sent - before])
    found["room"] = {}
    assert isinstance(exchange, PieceExchange)
    for mode, ahead in (("none", 12), ("none", 2), ("planes", 2)):
        exchange.choose_codec(mode)
        exchange._scratch, process_groups.exchange._AHEAD = {}, ahead
        buckets = [leaves_of(padded_length(1000 * number, size), torch.float32, seed=number) for number in range(1, 7)]
        is_tree = [all(ours == tree for ours, tree in step(exchange, placement, rank, buckets)) for _ in range(3)]
        found["room"][f"{mode} {ahead}"] = [all(is_tree), sum(len(place) for place in exchange._scratch.values())]
    exchange.choose_codec(("none", "planes")[rank == 1])
    found["unequal"] = error_of(lambda: step(exchange, placement, rank, buckets))
    transport_.close()
    return found
