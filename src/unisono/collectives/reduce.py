"""The owner-computes exchange: partial sums of all ranks in, the sum of the canonical tree out, on every rank.

Each rank owns one slice of the flat buffer, receives that slice of every partial, adds them in tree order, and
gives the result to all: two rounds, and 2(M-1)/M of the buffer per rank where each rank has one partial, as a ring
would take in 2(M-1) rounds. The bits are the tree's, whatever the number of ranks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from unisono.collectives.shared_memory import SharedBoard
from unisono.collectives.shm import meet
from unisono.collectives.transport import Transport
from unisono.collectives.tree import Node, combine, nodes
from unisono.errors import ConfigError

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
    owned = [nodes(hosted.start, hosted.stop, leaves) for hosted in placement]
    if transport.board is not None and out.device.type == "cpu":
        mine = [partial for _, partial in partials]
        transport.bytes_sent += _reduce_on_board(mine, owned, leaves, out, transport.board)
        return
    chunk = out.numel() // world_size
    recv_splits = [len(found) * chunk for found in owned]
    recv = out.new_empty(sum(recv_splits))
    sent = _by_destination(partials, world_size, out)
    transport.all_to_all(sent, [len(partials) * chunk] * world_size, recv, recv_splits)
    arrived = dict(zip((node for found in owned for node in found), recv.split(chunk), strict=True))
    transport.all_gather(combine(arrived, leaves, torch.add), out)


def _reduce_on_board(
    partials: Sequence[Tensor], owned: Sequence[Sequence[Node]], leaves: int, out: Tensor, board: SharedBoard
) -> int:
    """The same exchange through shared memory, in pieces that fit a slot; returns the bytes the others have read.

    What is written before meeting number b lies in the areas of parity b % 2 and is read between meetings b and b + 1:
    so one meeting per piece is enough. While piece t is added up, piece t + 1 is laid down. Up to the size the board's
    plan names, everyone adds up everything; above it each rank adds its share, and the others copy it one meeting on.
    """
    world_size, item = board.world_size, out.element_size()
    most = max(len(found) for found in owned)
    unit = ALIGNMENT * world_size
    room = min(board.slot_bytes, max(board.plan.piece_bytes, most * item * unit))
    length = room // (most * item) // unit * unit
    if not length:
        raise ConfigError(f"expected slots of at least {most * item * unit} bytes, got {board.slot_bytes}.")
    pieces = [range(start, min(start + length, out.numel())) for start in range(0, out.numel(), length)]
    note = f"tree_all_reduce of {out.numel()} x {out.dtype}, {leaves} leaves"
    everything = [(rank, index, node) for rank, found in enumerate(owned) for index, node in enumerate(found)]
    is_shared_out = out.nbytes > board.plan.whole_bytes

    def lay_down(piece: range) -> None:
        slot = board.slot(board.rank, board.num_barriers % 2).view(out.dtype)
        for index, partial in enumerate(partials):
            slot[index * len(piece) : (index + 1) * len(piece)].copy_(partial[piece.start : piece.stop])

    def add_up(piece: range, part: range, target: Tensor, parity: int) -> None:
        arrived = {
            node: board.slot(rank, parity).view(out.dtype)[index * len(piece) :][part.start : part.stop]
            for rank, index, node in everything
        }
        total = combine(arrived, leaves, torch.add, lambda left, right: torch.add(left, right, out=target))
        if total is not target:
            target.copy_(total)

    def copy_out(piece: range, parity: int) -> None:
        for rank, target in enumerate(out[piece.start : piece.stop].split(len(piece) // world_size)):
            target.copy_(board.result(rank, parity).view(out.dtype)[: len(target)])

    for number, piece in enumerate(pieces):
        if number == 0:
            lay_down(piece)
            meet(board, note)
        parity = (board.num_barriers - 1) % 2
        if is_shared_out:
            if number:
                copy_out(pieces[number - 1], parity)
            share = len(piece) // world_size
            own = range(board.rank * share, (board.rank + 1) * share)
            add_up(piece, own, board.result(board.rank, 1 - parity).view(out.dtype)[:share], parity)
        else:
            add_up(piece, range(len(piece)), out[piece.start : piece.stop], parity)
        if number + 1 < len(pieces):
            lay_down(pieces[number + 1])
            meet(board, note)
    if is_shared_out:
        meet(board, note)
        copy_out(pieces[-1], (board.num_barriers - 1) % 2)
        return (len(partials) + 1) * (out.nbytes - out.nbytes // world_size)
    return len(partials) * out.nbytes * (world_size - 1)


def _by_destination(partials: Sequence[tuple[Node, Tensor]], world_size: int, like: Tensor) -> Tensor:
    """Return the partials cut into slices and laid out destination by destination."""
    if not partials:
        return like.new_empty(0)
    if len(partials) == 1:
        return partials[0][1]  # one partial lies in destination order already
    # (partials, world_size, chunk) -> (world_size, partials, chunk)
    return torch.stack([partial.view(world_size, -1) for _, partial in partials], dim=1).reshape(-1)
