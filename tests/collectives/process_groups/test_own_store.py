"""Our store as torch sees it: groups of gloo are formed over it, from C++ and from threads."""

import contextlib
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
import torch
from torch.distributed import DistNetworkError, DistStoreError, PrefixStore, ProcessGroupGloo

from unisono.collectives.process_groups.own_store import OwnStore
from unisono.store.client import Client
from unisono.store.server import Server, listen

KEY = b"k" * 32
TIMEOUT = timedelta(seconds=30)


@pytest.fixture
def server():
    with contextlib.closing(Server(listen("127.0.0.1", 0), KEY)) as here:
        yield here


@pytest.fixture
def store(server):
    with contextlib.closing(Client("127.0.0.1", server.port, KEY)) as client:
        yield OwnStore(client, TIMEOUT)


def test_what_torch_asks(store, server):
    """Through torch's PrefixStore, that is from C++: values, numbers, waits, and errors of torch's own kinds."""
    prefixed = PrefixStore("group", store)
    prefixed.set("a", "1")
    assert prefixed.get("a") == b"1"
    assert store.get("group/a") == b"1"
    assert prefixed.add("n", 3) == 3
    assert prefixed.compare_set("c", "", "x") == b"x"
    assert prefixed.check(["a", "n"]) and not prefixed.check(["a", "none"])
    prefixed.multi_set(["m1", "m2"], ["1", "2"])
    assert prefixed.multi_get(["m1", "m2"]) == [b"1", b"2"]
    prefixed.append("m1", "0")
    assert prefixed.get("m1") == b"10"
    assert prefixed.delete_key("m1") and not prefixed.delete_key("m1")
    assert prefixed.num_keys() == 4
    with pytest.raises(DistStoreError, match=r"'group/none' within 0.1 s"):
        prefixed.wait(["none"], timedelta(seconds=0.1))
    server.close()
    with pytest.raises(DistNetworkError):
        prefixed.get("a")


@pytest.mark.parametrize("world_size", [2, 4])
def test_gloo_groups(store, world_size):
    """Ranks in threads form a group over one store of one process, and add up: no lock is held while one waits."""
    found = {}

    def execute(rank):
        group = ProcessGroupGloo(PrefixStore("gloo", store), rank, world_size, TIMEOUT)
        value = torch.tensor([float(rank + 1)])
        group.allreduce([value]).wait()
        found[rank] = value.item()

    threads = [threading.Thread(target=execute, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == dict.fromkeys(range(world_size), world_size * (world_size + 1) / 2)


AT_EXIT = """
import builtins, threading, time
{make}
threading.Thread(target=lambda: ask(), daemon=True).start()
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(1.0)
builtins.kept = Slow()  # goes late, while the thread's call returns
time.sleep(0.4)
"""
OURS = """
from unisono.store.client import Client
from unisono.store.server import Server, listen
server = Server(listen("127.0.0.1", 0), b"k" * 32)
client = Client("127.0.0.1", server.port, b"k" * 32)
def ask():
    client.get(b"never", 0.9)
"""
TORCHS = """
from datetime import timedelta
from torch.distributed import TCPStore
server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=0.9))
def ask():
    client.get("never")
"""


@pytest.mark.parametrize(
    ("make", "code"), [(OURS, 0), pytest.param(TORCHS, -6, marks=pytest.mark.slow)], ids=["ours", "control"]
)
def test_a_call_that_returns_while_the_interpreter_ends(make, code):
    """It ends with its thread; torch's store ends the process by `terminate called without an active exception`."""
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT.format(make=make)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert ("terminate called without an active exception" in done.stderr) == (code != 0)
