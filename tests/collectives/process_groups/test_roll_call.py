"""Who meets at a store, on the stores that ranks really meet at; threads are the ranks."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import FileStore, PrefixStore, TCPStore

from unisono.collectives.process_groups.roll_call import call_roll
from unisono.errors import PeerLost, WorldError
from unisono.world import World


def meet(places, kind, folder, timeout_s=20.0):
    """Call the roll as each (rank, world_size) of `places` at once; return what each got: None, or its error."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if kind == "tcp" else None

    def one(number):
        rank, size = places[number]
        if server is None:
            store = FileStore(str(folder / "store"), size)
        else:
            store = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
        store.set_timeout(timedelta(seconds=timeout_s))
        world = World(rank=rank, world_size=size, rendezvous=f"{kind}://here", launcher="torchrun")
        try:
            call_roll(PrefixStore("run/0", store), world, f"process {number} on host", timeout_s)
        except (PeerLost, WorldError) as error:
            return error
        finally:
            stores.append(store)  # a FileStore takes its file with it
        return None

    stores = []
    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(one, range(len(places))))


@pytest.fixture(params=["file", "tcp"])
def kind(request):
    """What the ranks meet at."""
    return request.param


def test_all_are_there(kind, tmp_path):
    """The control: numbers that fit, in any order of coming."""
    assert meet([(2, 3), (0, 3), (1, 3)], kind, tmp_path) == [None] * 3


def test_sizes_that_disagree(kind, tmp_path):
    """All are told both sizes and who said so, long before the timeout."""
    errors = meet([(0, 2), (1, 3)], kind, tmp_path)
    assert all(isinstance(error, WorldError) for error in errors)
    assert str(errors[0]) == str(errors[1])
    assert set(re.findall(r"(\d) for (?:one|another)", str(errors[0]))) == {"2", "3"}
    assert "process 0 on host" in str(errors[0])
    assert "process 1 on host" in str(errors[0])


def test_two_with_one_number(kind, tmp_path):
    """Both are named, and all are told."""
    errors = meet([(1, 3), (0, 3), (1, 3)], kind, tmp_path)
    assert all(isinstance(error, WorldError) for error in errors)
    for error in errors:
        assert "two processes are rank 1 of 3" in str(error)
        assert "process 0 on host" in str(error)
        assert "process 2 on host" in str(error)


def test_who_did_not_come(kind, tmp_path):
    """The absent are named when the time is over."""
    errors = meet([(1, 4), (3, 4)], kind, tmp_path, timeout_s=0.3)
    for error, rank in zip(errors, (1, 3), strict=True):
        assert isinstance(error, PeerLost)
        assert str(error) == (
            f"[rank {rank}/4] the ranks did not meet at {kind}://here within 0.3 s: ranks 0, 2 did not come."
        )


class Late:
    """A store whose rank reads the verdict only when it is let."""

    def __init__(self, store, let):
        self._store, self._let = store, let

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get(self, key):
        """Read, late."""
        assert self._let.wait(20)
        return self._store.get(key)


def test_nobody_leaves_before_all_are_told():
    """The rank that serves the store may be the first to know; the others must still be able to read the verdict."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    let = threading.Event()

    def one(rank_is_late):
        store = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
        world = World(rank=0, world_size=2, rendezvous="tcp://here", launcher="torchrun")
        with pytest.raises(WorldError, match="two processes are rank 0 of 2"):
            call_roll(Late(store, let) if rank_is_late else store, world, f"process {rank_is_late}", 20.0)

    with ThreadPoolExecutor(2) as pool:
        late, early = pool.submit(one, True), pool.submit(one, False)
        with pytest.raises(TimeoutError):
            early.result(0.5)  # it knows already, and waits
        let.set()
        late.result(20)
        early.result(20)
