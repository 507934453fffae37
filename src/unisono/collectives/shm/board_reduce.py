"""Reductions through a board: the partial values of all ranks in, the value of the canonical tree out.

A buffer goes through the slots in pieces. What is written before meeting number b lies in the areas of parity b % 2 and
is read between meetings b and b + 1: so one meeting per piece is enough. Up to the size that the board's plan names,
every rank combines everything; above it each rank combines its share and leaves it in its result area, from where the
others copy it one meeting later. The bits do not depend on which: every element's order is the tree's.
"""

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from unisono.collectives.reductions import REDUCTIONS, divide
from unisono.collectives.shm.board import SharedBoard
from unisono.collectives.tree import Node, combine
from unisono.errors import ConfigError

_ALIGNED_ELEMENTS = 16
_MOST_REDUCTIONS = 256

Owned = tuple[tuple[Node, ...], ...]
"""For each rank, the subtrees whose values it brings, left to right."""


def reduce_on_board(
    board: SharedBoard,
    mine: Sequence[Tensor],
    owned: Owned,
    leaves: int,
    out: Tensor | None,
    note: str,
    op: str = "SUM",
) -> int:
    """Combine the partial values of all ranks in the tree's order; collective.

    Args:
        board: Attached by all ranks.
        mine: This rank's values for ``owned[board.rank]``: contiguous, one-dimensional, of one length and dtype.
        owned: Disjoint subtrees that together hold all leaves.
        leaves: Leaves of the tree.
        out: Overwritten with the result; may be one of `mine`. None where this rank does not want it.
        note: What this is, the same on all ranks.
        op: A name of `REDUCTIONS`; AVG divides by the number of leaves.

    Returns:
        The bytes of this rank's that the others have read.

    Raises:
        ConfigError: The slots are too small for the partials of one rank.
        PeerLost: A rank went away.
        RankDivergence: The ranks disagree on the note.
    """
    like = out if out is not None else mine[0]
    key = (owned, leaves, op, like.dtype, like.numel(), board.plan)
    reduction = board.kept.get(key)
    if not isinstance(reduction, _Reduction):
        if len(board.kept) >= _MOST_REDUCTIONS:
            board.kept.clear()
        reduction = board.kept[key] = _Reduction(board, owned, leaves, op, like.dtype, like.numel())
    reduction.execute(mine, out, note)
    return reduction.bytes_read


@final
class _Reduction:
    """How buffers of one length are cut, and where their pieces lie; made once, since small buffers come often."""

    def __init__(self, board: SharedBoard, owned: Owned, leaves: int, op: str, dtype: torch.dtype, length: int) -> None:
        self._board, self._owned, self._leaves = board, owned, leaves
        self._function, self._divides, self._dtype = REDUCTIONS[op], op == "AVG", dtype
        self._mine = owned[board.rank]
        nodes = sorted(node for nodes in owned for node in nodes)
        self._pair = (nodes[0], nodes[1]) if len(nodes) == 2 else None
        size, item = board.world_size, dtype.itemsize
        most = max(len(nodes) for nodes in owned)
        self._is_whole = length * item <= board.plan.whole_bytes
        unit = 1 if self._is_whole else size
        smallest = most * item * unit * _ALIGNED_ELEMENTS
        room = min(board.slot_bytes, max(board.plan.piece_bytes, smallest)) // (most * item * unit)
        # A share must fit a result area; it does, since a piece of all shares fits a slot.
        room = unit * (room // _ALIGNED_ELEMENTS * _ALIGNED_ELEMENTS)
        if not room:
            raise ConfigError(f"expected slots of at least {smallest} bytes, got {board.slot_bytes}.")
        self._pieces = [range(start, min(start + room, length)) for start in range(0, length, room)] or [range(0)]
        self._places = {count: _Places(board, owned, dtype, count) for count in {len(piece) for piece in self._pieces}}
        others = size - 1
        own = len(owned[board.rank]) * length * item
        self.bytes_read = own * others if self._is_whole else (own + length * item) * others // size

    def execute(self, mine: Sequence[Tensor], out: Tensor | None, note: str) -> None:
        """Reduce; see `reduce_on_board`."""
        board, pieces = self._board, self._pieces
        self._lay_down(mine, pieces[0])
        for number, piece in enumerate(pieces):
            board.meet(note)
            parity = (board.num_meetings - 1) % 2
            places = self._places[len(piece)]
            if self._is_whole:
                if out is not None:
                    self._combine(places.everything[parity], mine, piece, _part(out, piece))
            else:
                if number and out is not None:
                    self._copy_out(out, pieces[number - 1], parity)
                share = range(piece.start + places.share.start, piece.start + places.share.stop)
                self._combine(places.shares[parity], mine, share, places.results[1 - parity][board.rank])
            if number + 1 < len(pieces):
                self._lay_down(mine, pieces[number + 1])
        if not self._is_whole:
            board.meet(note)
            if out is not None:
                self._copy_out(out, pieces[-1], (board.num_meetings - 1) % 2)

    def _lay_down(self, mine: Sequence[Tensor], piece: range) -> None:
        for place, value in zip(self._places[len(piece)].own[self._board.num_meetings % 2], mine, strict=True):
            place.copy_(_part(value, piece))

    def _combine(self, arrived: dict[Node, Tensor], mine: Sequence[Tensor], part: range, target: Tensor) -> None:
        # This rank's own values are read where they come from: that memory is in this core's cache.
        values = dict(arrived)
        for node, value in zip(self._mine, mine, strict=True):
            values[node] = _part(value, part)
        if self._pair is not None:
            left, right = self._pair
            self._function(values[left], values[right], out=target)
        else:
            into: Callable[[Tensor, Tensor], Tensor] = lambda left, right: self._function(left, right, out=target)  # noqa: E731
            total = combine(values, self._leaves, self._function, into)
            if total is not target:
                target.copy_(total)
        if self._divides:
            divide(target, self._leaves)

    def _copy_out(self, out: Tensor, piece: range, parity: int) -> None:
        places = self._places[len(piece)]
        for target, result in zip(_part(out, piece).split(places.share_length), places.results[parity], strict=False):
            target.copy_(result)


@final
class _Places:
    """Where a piece of `count` elements lies in the areas of all ranks, for both parities."""

    def __init__(self, board: SharedBoard, owned: Owned, dtype: torch.dtype, count: int) -> None:
        size, rank = board.world_size, board.rank
        self.share_length = max(1, -(-count // (size * _ALIGNED_ELEMENTS)) * _ALIGNED_ELEMENTS)
        bounds = [min(count, r * self.share_length) for r in range(size + 1)]
        self.share = range(bounds[rank], bounds[rank + 1])
        slots = [[board.slot(r, parity, dtype) for r in range(size)] for parity in range(2)]
        #: The places of all ranks' partials, by subtree.
        self.everything = [
            {
                node: slots[parity][r][index * count : (index + 1) * count]
                for r, nodes in enumerate(owned)
                for index, node in enumerate(nodes)
            }
            for parity in range(2)
        ]
        #: The places of this rank's partials.
        self.own = [[found[node] for node in owned[rank]] for found in self.everything]
        #: The same, cut to this rank's share.
        self.shares = [{node: _part(place, self.share) for node, place in found.items()} for found in self.everything]
        #: The combined shares of the ranks; the last ones may be shorter, or missing.
        self.results = [
            [board.result(r, parity, dtype)[: bounds[r + 1] - bounds[r]] for r in range(size)] for parity in range(2)
        ]


def _part(tensor: Tensor, part: range) -> Tensor:
    return tensor if len(part) == tensor.numel() else tensor[part.start : part.stop]
