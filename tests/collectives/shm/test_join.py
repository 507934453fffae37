"""How ranks find their shared memory through a store: here on threads of one process."""

import threading

import pytest
import torch
import torch.distributed as dist

from unisono.collectives.shm import join
from unisono.collectives.shm.join import share_memory
from unisono.errors import PeerLost, WorldError


def meet(world_size, timeout_s=30.0):
    """Let all ranks share memory; return what each got, or its error, and what is left in the store."""
    store, got = dist.HashStore(), {}

    def join(rank):
        try:
            got[rank] = share_memory(store, rank, world_size, timeout_s, 4096)
        except Exception as error:  # noqa: BLE001 - looked at below
            got[rank] = error

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got, store.num_keys()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_see_the_same_memory(world_size):
    """What one rank writes all others read, and nothing is left in the store."""
    got, left = meet(world_size)
    for rank, (board, _) in got.items():
        board.slot(rank, 0)[:4] = rank + 1
    for board, mailbox in got.values():
        for rank in range(world_size):
            assert torch.equal(board.slot(rank, 0)[:4], torch.full((4,), rank + 1, dtype=torch.uint8))
        board.close()
        mailbox.close()
    assert left == 0


def test_another_host(monkeypatch):
    """Where one rank cannot map the memory, all ranks say which, and what to use instead."""

    def refuse(*_):
        raise FileNotFoundError("no such process")

    monkeypatch.setattr(join.SharedBoard, "attach", refuse)
    got, _ = meet(2)
    for rank, error in got.items():
        assert isinstance(error, WorldError)
        assert str(error).startswith(f"[rank {rank}/2] shm joins ranks of one host, and rank 1 on ")
        assert "cannot map the memory of rank 0 (no such process)" in str(error)
        assert "use the backend gloo" in str(error)


def test_no_shared_memory_here(monkeypatch):
    """Where the system lacks what is needed, that is said on all ranks."""
    monkeypatch.setattr(join, "is_supported", lambda: False)
    got, _ = meet(2)
    assert all(isinstance(error, WorldError) and "Linux with memfd" in str(error) for error in got.values())


def test_nobody_comes():
    """A rank that waits in vain says for what, and how long it has waited."""
    with pytest.raises(PeerLost, match=r"\[rank 1/2\] the ranks did not meet within 0.2 s: nothing about 'address'"):
        share_memory(dist.HashStore(), 1, 2, 0.2, 4096)
