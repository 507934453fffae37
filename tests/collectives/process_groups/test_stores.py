"""Where ranks meet: one store for each place, the same for all who know the secret, and for nobody else."""

import contextlib
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from hosts import free_port
from unisono.collectives.process_groups import stores
from unisono.collectives.process_groups.own_store import OwnStore
from unisono.collectives.process_groups.stores import meet, name_of_epoch, store_of, store_of_epoch
from unisono.errors import WorldError
from unisono.store.secret import key_of
from unisono.store.server import Server, listen
from unisono.world import World

SECRET = "of the ranks of one run"
TIMEOUT = timedelta(seconds=30)


@pytest.fixture(autouse=True)
def stores_of_one_test(monkeypatch):
    """What stays open as long as a rank lives ends here with the test."""
    monkeypatch.setattr(stores, "_stores", {})
    monkeypatch.setattr(stores, "_servers", [])
    yield
    for store in stores._stores.values():
        if isinstance(store, OwnStore):
            store.client.close()
    for server in stores._servers:
        server.close()


def place(rank, rendezvous, size=2, secret=SECRET):
    return World(
        rank=rank, world_size=size, local_world_size=size, local_rank=rank, rendezvous=rendezvous, secret=secret
    )


def met(*worlds, name="run/0"):
    """Let ranks, here threads, meet; return what each has read of the others, or its error."""
    found = {}

    def come(index):
        world = worlds[index]
        try:
            store = meet(world, name, TIMEOUT)
            store.set(f"rank {index}", str(world.rank))
            found[index] = [store.get(f"rank {other}") for other in range(len(worlds))]
        except (WorldError, RuntimeError) as error:
            found[index] = error

    threads = [threading.Thread(target=come, args=(index,)) for index in range(len(worlds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[index] for index in range(len(worlds))]


def test_rank_0_keeps_the_store():
    """Under srun and mpirun; the others may come first, and a second meeting finds the same store with other keys."""
    rendezvous = f"tcp://127.0.0.1:{free_port()}"
    worlds = [place(1, rendezvous), place(0, rendezvous)]
    assert met(*worlds) == [[b"1", b"0"]] * 2
    assert met(*worlds, name="run/1") == [[b"1", b"0"]] * 2
    assert len(stores._servers) == 1
    with contextlib.closing(socket.socket()) as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", stores._servers[0].port))


def test_without_a_secret(monkeypatch, tmp_path):
    """Processes of one user share a file of his; the control: with another file they are strangers."""
    monkeypatch.setattr(stores, "default_cache", lambda: tmp_path / "cache")
    rendezvous = f"tcp://127.0.0.1:{free_port()}"
    assert met(place(0, rendezvous, secret=""), place(1, rendezvous, secret="")) == [[b"0", b"1"]] * 2
    monkeypatch.setattr(stores, "default_cache", lambda: tmp_path / "of another user")
    with pytest.raises(WorldError, match=r"has another secret .*Hint: give all ranks one UNISONO_SECRET"):
        meet(place(1, rendezvous, size=3, secret=""), "run/0", TIMEOUT)


def test_at_a_launchers_store():
    """What a launcher serves is reached by the ranks of its run, and refused to those of another."""
    with contextlib.closing(stores.Server(stores.listen("127.0.0.1", 0), stores.key_of(SECRET))) as server:
        rendezvous = f"unisono://127.0.0.1:{server.port}"
        assert met(place(0, rendezvous), place(1, rendezvous)) == [[b"0", b"1"]] * 2
        with pytest.raises(WorldError, match=r"\[rank 1/3\] the store at 127.0.0.1:\d+ has another secret"):
            meet(place(1, rendezvous, size=3, secret="of the ranks of another run"), "run/0", TIMEOUT)


def test_behind_torchruns_store(monkeypatch):
    """Torchrun's store tells no more than a port: whoever writes another one there meets ranks without the key."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as held:
        port = held.getsockname()[1]
    keeper = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    theirs = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    monkeypatch.setattr(
        stores,
        "_torchs",
        lambda world, timeout: TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timeout),
    )
    assert met(place(0, "env://"), place(1, "env://")) == [[b"0", b"1"]] * 2
    assert theirs.get("unisono/port") == str(stores._servers[0].port).encode()
    assert keeper.num_keys() <= 2  # the port, and one that torch counts itself
    with contextlib.closing(stores.Server(stores.listen("127.0.0.1", 0), stores.key_of("of a neighbour " * 2))) as his:
        theirs.set("unisono/port", str(his.port))
        with pytest.raises(WorldError, match="has another secret"):
            meet(place(1, "env://", size=3), "run/0", TIMEOUT)
    theirs.set("unisono/port", "65536")
    with pytest.raises(WorldError, match="somebody else has written there"):
        meet(place(1, "env://", size=3), "run/0", TIMEOUT)


def test_one_store_for_each_meeting_place(tmp_path):
    """A process that connects again meets at the store it has, not at a file that another is about to remove."""
    here, there = (World(world_size=2, local_world_size=2, rendezvous=f"file://{tmp_path / name}") for name in "ab")
    first = store_of(here, timedelta(seconds=5))
    first.set("key", "kept")
    again = store_of(here, timedelta(seconds=7))
    assert again is first
    assert again.get("key") == b"kept"
    assert again.timeout == timedelta(seconds=7)
    other = store_of(there, timedelta(seconds=5))
    assert other is not first
    assert not other.check(["key"])


RANK_0 = """
import os, sys
from unisono.collectives.process_groups.transport import connect
from unisono.errors import WorldError
from unisono.world import World
try:
    connect(World(rank=0, world_size=2, rendezvous=sys.argv[1], launcher="torchrun"))
except WorldError as error:
    print(error)
"""


def start_rank_0(rendezvous):
    return subprocess.Popen([sys.executable, "-c", RANK_0, rendezvous], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_processes_are_rank_0():
    """The second cannot open the store; both are told of both, long before the ranks' 300 s are over."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    both = [start_rank_0(place) for _ in range(2)]
    first, second = (process.communicate()[0] for process in both)
    assert first == second
    assert "two processes are rank 0 of 2" in first
    assert all(f"process {process.pid} on " in first for process in both)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_something_else_listens():
    """It is said after a look, with the remedy."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        said = start_rank_0(f"tcp://127.0.0.1:{server.getsockname()[1]}").communicate()[0]
    assert "[rank 0/2] something else listens already where the ranks are to meet (tcp://127.0.0.1:" in said
    assert "Hint: give this run a MASTER_PORT of its own" in said


def test_an_epoch_is_met_where_its_first_rank_says(tmp_path):
    """At a store of its own host's launcher, whatever has become of the first one; on one host, at a file."""
    server = Server(listen("127.0.0.1", 0), key_of(SECRET))
    gone = f"unisono://127.0.0.1:{free_port()}"
    first, second = (replace(place(rank, gone), live_store=f"127.0.0.1:{server.port}") for rank in (0, 1))
    name = name_of_epoch(first, 3)
    store_of_epoch(first, name, 2).set("here/0", "x")
    assert store_of_epoch(second, name, 2).get("here/0") == b"x"
    assert not store_of_epoch(second, name_of_epoch(first, 4), 2).check(["here/0"])
    server.close()
    one = place(0, f"file://{tmp_path / 'store'}")
    assert name_of_epoch(one, 3) == "e3"
    store_of_epoch(one, "e3", 2).set("here/0", "x")
    assert (tmp_path / "store-e3").exists()
