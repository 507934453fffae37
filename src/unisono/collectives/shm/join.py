"""How the ranks of a process group find their shared memory: each tells the others its place through torch's store."""

import json
import os
import socket
from datetime import timedelta

from torch._C._distributed_c10d import Store

from unisono.collectives.shm.board import SharedBoard
from unisono.collectives.shm.mailbox import Mailbox
from unisono.collectives.shm.shared_block import is_supported
from unisono.errors import PeerLost, WorldError

_PIECE_BYTES = 256 << 10


def share_memory(
    store: Store, rank: int, world_size: int, timeout_s: float, slot_bytes: int
) -> tuple[SharedBoard, Mailbox]:
    """Make or map the memory of a group; all its ranks call it, and it blocks until they have.

    Args:
        store: Where the ranks tell each other the addresses; nothing is left in it.
        rank: This rank in the group.
        world_size: Number of ranks in the group.
        timeout_s: Longest wait for another rank, now and in the operations.
        slot_bytes: Bytes per meeting and rank; a multiple of 64.

    Raises:
        WorldError: The ranks share no memory: they run on several hosts, say.
        PeerLost: The other ranks did not come in time.
    """
    board: SharedBoard | None = None
    mailbox: Mailbox | None = None
    problem = "" if is_supported() else "has no shared memory of the kind needed (Linux with memfd, pidfd and /proc)"
    if rank == 0:
        addresses = ["", ""]
        if not problem:
            board, addresses[0] = SharedBoard.create(world_size, slot_bytes, timeout_s)
            mailbox, addresses[1] = Mailbox.create(world_size, _PIECE_BYTES, timeout_s)
        store.set("address", json.dumps(addresses))
    addresses = json.loads(_get(store, "address", rank, world_size, timeout_s))
    if rank != 0 and all(addresses) and not problem:
        try:
            board = SharedBoard.attach(addresses[0], rank, world_size, slot_bytes, timeout_s)
            mailbox = Mailbox.attach(addresses[1], rank, world_size, _PIECE_BYTES, timeout_s)
        except (OSError, ValueError) as error:
            problem = f"cannot map the memory of rank 0 ({error})"
    store.set(f"rank {rank}", json.dumps([os.getpid(), socket.gethostname(), problem]))
    told = [json.loads(_get(store, f"rank {other}", rank, world_size, timeout_s)) for other in range(world_size)]
    problems = [f"rank {other} on {host} {what}" for other, (_, host, what) in enumerate(told) if what]
    if problems or board is None or mailbox is None:
        raise WorldError(
            f"[rank {rank}/{world_size}] shm joins ranks of one host, and {'; '.join(problems)}. "
            "Hint: use the backend gloo for ranks on several hosts."
        )
    pids = [pid for pid, _, _ in told]
    board.watch(pids)
    mailbox.watch(pids)
    # A later group of this name, in these processes, must not find what this one has left.
    board.barrier(b"init_process_group")
    if rank == 0:
        for key in ("address", *(f"rank {other}" for other in range(world_size))):
            store.delete_key(key)
    board.barrier(b"init_process_group")
    return board, mailbox


def _get(store: Store, key: str, rank: int, world_size: int, timeout_s: float) -> bytes:
    try:
        store.wait([key], timedelta(seconds=timeout_s))
        return bytes(store.get(key))
    except RuntimeError as error:
        raise PeerLost(
            f"[rank {rank}/{world_size}] the ranks did not meet within {timeout_s:g} s: nothing about {key!r} is known "
            f"({str(error).strip().splitlines()[0]}). Hint: have all ranks been started?"
        ) from error
