"""The owner-computes exchange: partial sums of all ranks in, the sum of the canonical tree out, on every rank.

Each rank owns one slice of the flat buffer, receives that slice of every partial, adds them in tree order, and
gives the result to all: two rounds, and 2(M-1)/M of the buffer per rank where each rank has one partial, as a ring
would take in 2(M-1) rounds. The bits are the tree's, whatever the number of ranks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from unisono.collectives.shm.board_reduce import reduce_on_board
from unisono.collectives.transport import Transport
from unisono.collectives.tree import Node, combine, owned_nodes

ALIGNMENT = 16
"""Elements to which slices and segments of flat buffers are rounded up: 64 bytes of float32."""


def padded_length(length: int, world_size: int) -> int:
    """Return `length` rounded up so that every rank owns an equal, aligned slice."""
    unit = ALIGNMENT * world_size
    return -(-length // unit) * unit


def tree_all_reduce(
    partials: Sequence[tuple[Node, Tensor]],
    placement: Sequence[range],
    leaves: int,
    out: Tensor,
    transport: Transport,
) -> None:
    """Add the partial sums of all ranks in canonical order; every rank calls it and gets the same bits.

    Args:
        partials: This rank's subtrees and their sums: contiguous one-dimensional tensors of `padded_length`.
        placement: The leaves that each rank hosts, in rank order.
        leaves: Leaves of the tree (replicas that have a sample), at least 1.
        out: Like the partials, overwritten with the result; may be one of them.
        transport: Joins the ranks.

    Raises:
        PeerLost: A rank went away.
    """
    world_size = transport.world_size
    if world_size == 1:
        total = combine(dict(partials), leaves, torch.add)
        if total.data_ptr() != out.data_ptr():
            out.copy_(total)
        return
    owned = owned_nodes(tuple(placement), leaves)
    note = f"tree_all_reduce of {len(out)} x {str(out.dtype)[6:]}, {leaves} leaves"
    if transport.board is not None and out.device.type == "cpu":
        mine = [partial for _, partial in partials]
        transport.bytes_sent += reduce_on_board(transport.board, mine, owned, leaves, out, transport.told(note))
        return
    transport.agree(note)
    if transport.tree_reducer is not None and out.device.type == "cpu":
        transport.tree_reducer(partials, placement, leaves, out)
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
