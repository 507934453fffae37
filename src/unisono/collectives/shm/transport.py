"""The `shm` transport: ranks of one host leave their buffers on a shared board, without sockets.

`over_shared_memory` puts it on top of another transport, which is needed once, to tell the ranks where the memory is.
Every meeting carries a note of what each rank is doing: ranks that run different code, or pass other sizes, all get
the same clear error instead of a hang.
"""

import contextlib
import os
from collections.abc import Sequence
from typing import final

from torch import Tensor

from unisono.collectives.shm.board import SharedBoard
from unisono.collectives.shm.operations import Collectives
from unisono.collectives.shm.shared_block import is_supported
from unisono.collectives.transport import Transport

SLOT_BYTES = 4 << 20


@final
class ShmTransport(Transport):
    """Moves tensors between ranks of one host through a `SharedBoard`.

    Args:
        board: Attached by all ranks.
        below: The transport that the ranks met over; closed with this one. None where they met in another way.
    """

    board: SharedBoard

    def __init__(self, board: SharedBoard, below: Transport | None) -> None:
        self.board, self._below = board, below
        self.rank, self.world_size = board.rank, board.world_size
        self.bytes_sent = 0
        self._operations = Collectives(board, self.told)

    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        self.bytes_sent += send.nbytes * (self.world_size - 1)
        self._operations.all_gather_single(recv, send)

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        self.bytes_sent += (send.numel() - send_splits[self.rank]) * send.element_size()
        self._operations.all_to_all(recv.split(recv_splits), send.split(send_splits))

    def barrier(self) -> None:
        self._operations.barrier()

    def close(self) -> None:
        """Leave the board and the transport below."""
        self.board.close()
        if self._below is not None:
            self._below.close()


def over_shared_memory(below: Transport, *, timeout_s: float, slot_bytes: int = SLOT_BYTES) -> Transport:
    """Return a transport over shared memory between the ranks that `below` joins; `below` itself where that cannot be.

    All ranks call it and get the same kind.
    """
    board = share_board(below, (range(below.world_size),), timeout_s=timeout_s, slot_bytes=slot_bytes)
    return below if board is None else ShmTransport(board, below)


def share_board(below: Transport, hosts: Sequence[range], *, timeout_s: float, slot_bytes: int) -> SharedBoard | None:
    """Return the board of this rank's host; None, on all ranks, where some of them cannot share one.

    All ranks call it.
    """
    ranks = next(ranks for ranks in hosts if below.rank in ranks)
    board: SharedBoard | None = None
    address = ""
    if below.rank == ranks.start and is_supported():
        board, address = SharedBoard.create(len(ranks), slot_bytes, timeout_s)
    try:
        address = below.all_gather_json(address)[ranks.start]
        if below.rank != ranks.start and address and is_supported():
            with contextlib.suppress(OSError):  # another host or process namespace: said below, to all ranks
                board = SharedBoard.attach(address, below.rank - ranks.start, len(ranks), slot_bytes, timeout_s)
        pids = below.all_gather_json(os.getpid() if board is not None else 0)
    except BaseException:  # of ranks that may go on without one that has died, too
        if board is not None:
            board.close()
        raise
    if board is None or not all(pids):
        if board is not None:
            board.close()
        return None
    board.first_rank, board.num_ranks = ranks.start, below.world_size
    board.watch([pids[rank] for rank in ranks])
    return board
