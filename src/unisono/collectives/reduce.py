"""The owner-computes exchange: partial sums of all ranks in, the sum of the canonical tree out, on every rank.

Each rank owns one slice of the flat buffer, receives that slice of every partial, adds them in tree order, and
gives the result to all: two rounds, and 2(M-1)/M of the buffer per rank where each rank has one partial, as a ring
would take in 2(M-1) rounds. The bits are the tree's, whatever the number of ranks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from unisono.collectives.coding.rounding import Rounding
from unisono.collectives.shm.board_reduce import reduce_on_board
from unisono.collectives.transport import Transport
from unisono.collectives.tree import Node, combine, owned_nodes


def tree_all_reduce(
    partials: Sequence[tuple[Node, Tensor]],
    placement: Sequence[range],
    leaves: int,
    out: Tensor,
    transport: Transport,
    *,
    is_agreed: bool = False,
    rounding: Rounding | None = None,
) -> None:
    """Add the partial sums of all ranks in canonical order; every rank calls it and gets the same bits.

    Args:
        partials: This rank's subtrees and their sums: contiguous one-dimensional tensors of `padded_length`.
        placement: The leaves that each rank hosts, in rank order.
        leaves: Leaves of the tree (replicas that have a sample), at least 1.
        out: Like the partials, overwritten with the result; may be one of them.
        transport: Joins the ranks.
        is_agreed: Whether the ranks have made sure that their sizes agree; boards always do.
        rounding: How every sum is rounded, as the partials are already; messages are as short as that allows.
    """
    world_size = transport.world_size
    if world_size == 1:
        total = combine(dict(partials), leaves, torch.add, settle=None if rounding is None else rounding.round_)
        if total.data_ptr() != out.data_ptr():
            out.copy_(total)
        return
    if not is_agreed and (transport.board is None or rounding is not None or out.device.type != "cpu"):
        transport.agree(note_of([out], leaves, [rounding]))
    owned = owned_nodes(tuple(placement), leaves)
    if transport.board is not None and rounding is None and out.device.type == "cpu":
        mine, note = [partial for _, partial in partials], transport.told(note_of([out], leaves))
        transport.bytes_sent += reduce_on_board(transport.board, mine, owned, leaves, out, note)
        return
    if transport.tree_reducer is not None and out.device.type == "cpu":
        transport.tree_reducer(partials, placement, leaves, out, rounding)
        return
    if rounding is not None:
        _reduce_rounded(partials, owned, leaves, out, transport, rounding)
        return
    chunk = out.numel() // world_size
    recv_splits = [len(found) * chunk for found in owned]
    recv = out.new_empty(sum(recv_splits))
    sent = _by_destination(partials, world_size, out)
    transport.all_to_all(sent, [len(partials) * chunk] * world_size, recv, recv_splits)
    arrived = dict(zip((node for found in owned for node in found), recv.split(chunk), strict=True))
    transport.all_gather(combine(arrived, leaves, torch.add), out)


def _by_destination(partials: Sequence[tuple[Node, Tensor]], world_size: int, like: Tensor) -> Tensor:
    """Return the partials cut into slices and laid out destination by destination."""
    if not partials:
        return like.new_empty(0)
    if len(partials) == 1:
        return partials[0][1]  # one partial lies in destination order already
    # (partials, world_size, chunk) -> (world_size, partials, chunk)
    return torch.stack([partial.view(world_size, -1) for _, partial in partials], dim=1).reshape(-1)


def _reduce_rounded(
    partials: Sequence[tuple[Node, Tensor]], owned: Sequence[Sequence[Node]], leaves: int, out: Tensor,
    transport: Transport, rounding: Rounding,
) -> None:  # fmt: skip
    """Do what `tree_all_reduce` does, with messages of rounded numbers."""
    size, chunk = transport.world_size, len(out) // transport.world_size
    width = rounding.room(out[:chunk])
    sent = torch.empty(size, len(partials), width, dtype=torch.uint8, device=out.device)
    for index, (_, partial) in enumerate(partials):
        for message, part in zip(sent[:, index], partial.view(size, chunk), strict=True):
            rounding.encode(part, message)
    received = sent.new_empty(sum(map(len, owned)), width)
    splits = [len(found) * width for found in owned]
    transport.all_to_all(sent.view(-1), [len(partials) * width] * size, received.view(-1), splits)
    every = (node for found in owned for node in found)
    arrived = {
        node: rounding.decode(message, out.new_empty(chunk)) for node, message in zip(every, received, strict=True)
    }
    total = combine(arrived, leaves, torch.add, settle=rounding.at(transport.rank * chunk).round_)
    results = sent.new_empty(size, width)
    transport.all_gather(rounding.encode(total, sent.new_empty(width)), results.view(-1))
    for message, part in zip(results, out.view(size, chunk), strict=True):
        rounding.decode(message, part)


def note_of(outs: Sequence[Tensor], leaves: int, roundings: Sequence[Rounding | None] = ()) -> str:
    """Return in words what the ranks must do alike: the buffers that are summed, how they are rounded, and the tree."""
    lengths: dict[torch.dtype, int] = {}
    for out in outs:
        lengths[out.dtype] = lengths.get(out.dtype, 0) + len(out)
    sizes = " + ".join(f"{length} x {str(dtype)[6:]}" for dtype, length in lengths.items())
    rounded = {type(rounding).__name__.lower(): None for rounding in roundings if rounding is not None}
    return f"tree_all_reduce of {sizes}{''.join(f', {name}' for name in rounded)}, {leaves} leaves"
