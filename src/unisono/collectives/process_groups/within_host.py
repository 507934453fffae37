"""What the ranks of one host do before and after a bucket crosses to other hosts, in the memory that they share.

A bucket is cut into as many slices as there are ranks (`speakers`). `collect` adds up the host's partial sums of the
slices that this rank carries, as far as the canonical tree allows; `spread` gives all ranks of the host what has come
back for them. Each has a board of its own: two threads may be in them at once.
"""

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from unisono.collectives.coding.rounding import Rounding
from unisono.collectives.exchange import Partials
from unisono.collectives.pieces import ALIGNMENT
from unisono.collectives.process_groups.speakers import Hosts, carried, host_nodes, host_of
from unisono.collectives.shm.board import SharedBoard, Watcher
from unisono.collectives.tree import Node, combine, owned_nodes
from unisono.errors import ConfigError


@final
class WithinHost:
    """One rank's part in the sums of its host."""

    def __init__(self, hosts: Hosts, rank: int, collecting: SharedBoard, spreading: SharedBoard) -> None:
        self._hosts, self._host, self._size = hosts, host_of(hosts, rank), hosts[-1].stop
        self._carried = [carried(hosts, other) for other in hosts[self._host]]
        self._mine = self._carried[collecting.rank]
        self._not_mine = [part for part in range(self._size) if part not in self._mine]
        self._collecting, self._spreading = collecting, spreading

    def start(self, placement: Sequence[range], leaves: int) -> None:
        """Begin a step; see `Exchange.start`."""
        owned = owned_nodes(tuple(placement), leaves)
        self._owned = [owned[rank] for rank in self._hosts[self._host]]
        self._sums, self._leaves = host_nodes(self._hosts, placement, leaves)[self._host], leaves
        self._most = max(1, *(len(found) for found in self._owned))

    def collect(
        self, partials: Partials, out: Tensor, rounding: Rounding | None = None
    ) -> list[tuple[Node, dict[int, Tensor]]]:
        """Return the host's sums of a bucket, each by the slices that this rank carries; the host's ranks meet.

        Args:
            partials: Of this rank.
            out: Where the bucket's result will be, and some of the sums are until then.
            rounding: How the bucket's sums are rounded, as the partials are already.

        Raises:
            ConfigError: The board is too small for one element of each, or one block that is rounded.
            PeerLost: A rank went away.
        """
        board, mine = self._collecting, {node: partial.view(self._size, -1) for node, partial in partials}
        targets = self._targets(partials, out)
        length, most = len(out) // self._size, self._most * self._size
        for piece in _pieces(board, length, most, out, in_blocks=rounding is not None):
            own = self._laid_down(board.rank, board.num_meetings % 2, piece, out)
            for place, rows in zip(own, mine.values(), strict=True):
                for part in self._not_mine:
                    place[part].copy_(rows[part][piece])
            board.meet("sum inside a host")
            parity = (board.num_meetings - 1) % 2
            arrived = {
                node: rows
                for rank, found in enumerate(self._owned)
                if rank != board.rank
                for node, rows in zip(found, self._laid_down(rank, parity, piece, out), strict=True)
            }
            for root, chunks in targets:
                for part in () if root in mine else self._mine:
                    _add_up(
                        {node: rows[part] for node, rows in arrived.items()}
                        | {node: rows[part][piece] for node, rows in mine.items()},
                        self._leaves, root, chunks[part][piece],
                        None if rounding is None else rounding.at(part * length + piece.start),
                    )  # fmt: skip
        return targets

    def spread(self, out: Tensor) -> None:
        """Give this rank's slices of a bucket's result to the host's other ranks, and take theirs; the ranks meet."""
        board, whole = self._spreading, out.view(self._size, -1)
        most = max(map(len, self._carried))
        for piece in _pieces(board, whole.shape[1], most, out):
            width = piece.stop - piece.start
            own = board.slot(board.rank, board.num_meetings % 2, out.dtype)
            for place, part in zip(own[: len(self._mine) * width].view(-1, width), self._mine, strict=True):
                place.copy_(whole[part][piece])
            board.meet("result inside a host")
            parity = (board.num_meetings - 1) % 2
            for rank, parts in enumerate(self._carried):
                if rank != board.rank:
                    slot = board.slot(rank, parity, out.dtype)[: len(parts) * width].view(-1, width)
                    for part, arrived in zip(parts, slot, strict=True):
                        whole[part][piece].copy_(arrived)

    def watch(self, live: Watcher) -> None:
        """Ask somebody at every meeting whether the world has changed."""
        self._collecting.live = self._spreading.live = live

    def close(self) -> None:
        """Leave the boards."""
        self._collecting.close()
        self._spreading.close()

    def _targets(self, partials: Partials, out: Tensor) -> list[tuple[Node, dict[int, Tensor]]]:
        """Return where each sum goes: a partial that is one already stays, `out` takes one more, the rest is new."""
        mine = dict(partials)
        in_out = [node for node, partial in partials if partial.data_ptr() == out.data_ptr()]
        room: Tensor | None = out.view(self._size, -1)
        found = []
        for root in self._sums:
            if root in mine:
                rows = mine[root].view(self._size, -1)
                room = None if root in in_out else room
            elif room is not None and all(root[0] <= node[0] and node[1] <= root[1] for node in in_out):
                rows, room = room, None
            else:
                new = out.new_empty(len(self._mine), len(out) // self._size)
                found.append((root, dict(zip(self._mine, new, strict=True))))
                continue
            found.append((root, {part: rows[part] for part in self._mine}))
        return found

    def _laid_down(self, rank: int, parity: int, piece: slice, like: Tensor) -> Tensor:
        """Return where a rank of the host leaves a piece of its partials: (its subtrees, slices, elements)."""
        count, width = len(self._owned[rank]), piece.stop - piece.start
        slot = self._collecting.slot(rank, parity, like.dtype)
        return slot[: count * self._size * width].view(count, self._size, width)


def _add_up(values: dict[Node, Tensor], leaves: int, root: Node, target: Tensor, rounding: Rounding | None) -> None:
    into: Callable[[Tensor, Tensor], Tensor] = lambda left, right: torch.add(left, right, out=target)  # noqa: E731
    settle = None if rounding is None else rounding.round_
    total = combine(values, leaves, torch.add, into, root, settle)
    if total is not target:
        target.copy_(total)


def _pieces(board: SharedBoard, length: int, rows: int, like: Tensor, *, in_blocks: bool = False) -> list[slice]:
    """Cut rows of this length so that a piece of all of them fits a slot; in whole blocks where it can be."""
    element, least = rows * like.element_size(), ALIGNMENT if in_blocks else 1
    room = min(board.slot_bytes, board.plan.piece_bytes) // element
    if room < ALIGNMENT and (room := board.slot_bytes // element) < least:
        raise ConfigError(f"expected slots of at least {least * element} bytes, got {board.slot_bytes}.")
    room = room // ALIGNMENT * ALIGNMENT or room
    return [slice(start, min(start + room, length)) for start in range(0, length, room)]
