"""The `shm` transport: ranks of one host leave their buffers on a shared board, without sockets.

`over_shared_memory` puts it on top of another transport, which is needed once, to tell the ranks where the memory is.
Every meeting carries a note of what each rank is doing: ranks that run different code, or pass other sizes, all get
the same clear error instead of a hang.
"""

import os
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from unisono.collectives.shm.board import NOTE_BYTES, SharedBoard
from unisono.collectives.shm.shared_block import is_supported
from unisono.collectives.transport import Transport, divergence
from unisono.errors import RankDivergence

SLOT_BYTES = 4 << 20
_ALIGNMENT = 64


@final
class ShmTransport(Transport):
    """Moves tensors between ranks of one host through a `SharedBoard`.

    Args:
        board: Attached by all ranks.
        below: The transport that the ranks met over; closed with this one. None where they met in another way.
    """

    board: SharedBoard

    def __init__(self, board: SharedBoard, below: Transport | None) -> None:
        self.board = board
        self._below = below
        self.rank = board.rank
        self.world_size = board.world_size
        self.bytes_sent = 0

    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        """See `Transport.all_gather`."""
        self.bytes_sent += send.nbytes * (self.world_size - 1)
        source, targets = as_bytes(send), [as_bytes(part) for part in recv.split(len(send))]
        note = f"all_gather of {len(send)} x {send.dtype}"
        room = min(self.board.slot_bytes, max(_ALIGNMENT, self.board.plan.piece_bytes))
        for start in range(0, max(1, len(source)), room):
            piece = source[start : start + room]
            parity = self.board.num_barriers % 2
            self.board.slot(self.rank, parity)[: len(piece)].copy_(piece)
            self._meet(note)
            for rank, target in enumerate(targets):
                target[start : start + len(piece)].copy_(self.board.slot(rank, parity)[: len(piece)])

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        """See `Transport.all_to_all`."""
        item = send.element_size()
        self.bytes_sent += (send.numel() - send_splits[self.rank]) * item
        sources = [as_bytes(part) for part in send.split(send_splits)]
        targets = [as_bytes(part) for part in recv.split(recv_splits)]
        # Each slot begins with the sizes of its parts, so that all ranks know how many rounds the longest one takes.
        head = -(-8 * self.world_size // _ALIGNMENT) * _ALIGNMENT
        room = (self.board.slot_bytes - head) // self.world_size // _ALIGNMENT * _ALIGNMENT
        sizes = torch.tensor([len(part) for part in sources])

        def longest_of(table: list[list[int]]) -> int:
            self._check_sizes([row[self.rank] for row in table], [len(part) for part in targets])
            return max(map(max, table))

        note = f"all_to_all of {send.dtype}"
        exchange_parts(self.board, sources, targets, sizes, head, room, lambda: self._meet(note), longest_of)

    def _check_sizes(self, sent: list[int], expected: list[int]) -> None:
        if sent != expected:
            raise RankDivergence(
                f"[rank {self.rank}/{self.world_size}] all_to_all: expected {expected} bytes from the ranks, "
                f"they send {sent}."
            )

    def barrier(self) -> None:
        """See `Transport.barrier`."""
        self._meet("barrier")

    def close(self) -> None:
        """Leave the board and the transport below."""
        self.board.close()
        if self._below is not None:
            self._below.close()

    def _meet(self, note: str) -> None:
        meet(self.board, self.told(note))


def as_bytes(flat: Tensor) -> Tensor:
    """Return a contiguous one-dimensional tensor as uint8, over the same memory."""
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)


def exchange_parts(
    board: SharedBoard,
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    sizes: Tensor,
    head: int,
    room: int,
    meet_all: Callable[[], object],
    longest_of: Callable[[list[list[int]]], int],
) -> None:
    """Hand every rank its part, and take its part for this one; pieces of all parts lie in a rank's slot at once.

    Args:
        board: Of these ranks.
        sources: uint8 (n,): what each rank gets from this one.
        targets: uint8 (n,): where what each rank has for this one goes.
        sizes: int64 (k,), equally long on all ranks: what this rank says of its parts' sizes.
        head: Bytes of a slot that are for `sizes`.
        room: Bytes of a slot that are for each part.
        meet_all: Waits for all ranks.
        longest_of: From what all ranks have said, in rank order: the bytes of the longest part of any pair.
    """
    start, longest = 0, 1
    while start < longest:
        parity = board.num_barriers % 2
        own = board.slot(board.rank, parity)
        own[: sizes.nbytes].view(torch.int64).copy_(sizes)
        for rank, source in enumerate(sources):
            piece = source[start : start + room]
            own[head + rank * room :][: len(piece)].copy_(piece)
        meet_all()
        slots = [board.slot(rank, parity) for rank in range(board.world_size)]
        if not start:
            longest = longest_of([slot[: sizes.nbytes].view(torch.int64).tolist() for slot in slots])
        for slot, target in zip(slots, targets, strict=True):
            part = target[start : start + room]
            part.copy_(slot[head + board.rank * room :][: len(part)])
        start += room


def meet(board: SharedBoard, note: str) -> None:
    """Wait for all ranks, and check that they are doing the same.

    Raises:
        PeerLost: A rank has died or has not come in time.
        RankDivergence: Ranks are doing different things; raised on all of them.
    """  # noqa: DOC501 - a function makes the error
    notes = board.barrier(note.encode()[:NOTE_BYTES])
    if any(other != notes[0] for other in notes):
        told = [other.decode(errors="replace") for other in notes]
        raise divergence(board.title, board.first_rank, told, f"in meeting {board.num_barriers}")


def over_shared_memory(below: Transport, *, timeout_s: float, slot_bytes: int = SLOT_BYTES) -> Transport:
    """Return a transport over shared memory between the ranks that `below` joins; `below` itself where that cannot be.

    All ranks call it and get the same kind.

    Args:
        below: Joins ranks of one host.
        timeout_s: Longest wait for a rank that lives.
        slot_bytes: Bytes per meeting and rank; a multiple of 64.
    """
    board = share_board(below, (range(below.world_size),), timeout_s=timeout_s, slot_bytes=slot_bytes)
    return below if board is None else ShmTransport(board, below)


def share_board(below: Transport, hosts: Sequence[range], *, timeout_s: float, slot_bytes: int) -> SharedBoard | None:
    """Return the board of this rank's host; None, on all ranks, where some of them cannot share one.

    All ranks call it.

    Args:
        below: Joins all ranks.
        hosts: The ranks of each host.
        timeout_s: Longest wait for a rank that lives.
        slot_bytes: Bytes per meeting and rank; a multiple of 64.
    """
    ranks = next(ranks for ranks in hosts if below.rank in ranks)
    board: SharedBoard | None = None
    address = ""
    if below.rank == ranks.start and is_supported():
        board, address = SharedBoard.create(len(ranks), slot_bytes, timeout_s)
    address = below.all_gather_json(address)[ranks.start]
    if below.rank != ranks.start and address and is_supported():
        try:
            board = SharedBoard.attach(address, below.rank - ranks.start, len(ranks), slot_bytes, timeout_s)
        except OSError:
            board = None  # another host or process namespace: said below, to all ranks
    pids = below.all_gather_json(os.getpid() if board is not None else 0)
    if board is None or not all(pids):
        if board is not None:
            board.close()
        return None
    board.first_rank, board.num_ranks = ranks.start, below.world_size
    board.watch([pids[rank] for rank in ranks])
    return board
