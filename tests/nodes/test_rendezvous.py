"""The rendezvous: who keeps it, who fits, and what is said to those who do not; launchers are threads here."""

import contextlib
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hosts import free_port
from unisono.errors import ConfigError, LaunchError
from unisono.launchers.local import Signals
from unisono.launchers.worker_group import Signalled
from unisono.nodes import rendezvous as module
from unisono.nodes import rounds as rounds_module
from unisono.nodes.endpoint import Interrupted
from unisono.nodes.network import Interface
from unisono.nodes.plan import NodesPlan
from unisono.nodes.rendezvous import NotNeeded, Rendezvous
from unisono.nodes.roll import NodeInfo
from unisono.nodes.roll_call import _serve_workers
from unisono.store import client as client_module
from unisono.store.secret import key_of
from unisono.store.server import Server, listen

LOOPBACK = Interface("lo", "127.0.0.1")
CARD = NodeInfo(
    number=0, host="here", address="127.0.0.1", probe_port=1, pid=1, workers=1, nodes="2:2", node_rank=-1, program="p",
    code="c" * 64, arguments="", software="s", threads="1", rules="r",
)  # fmt: skip


@pytest.fixture
def meet(tmp_path):
    """Make rendezvous at one endpoint."""
    port, opened = free_port(), []

    def meet(signals=None, info=CARD, **settings):
        plan = NodesPlan(
            **{"min_nodes": 2, "max_nodes": 2, "host": "127.0.0.1", "port": port, "join_s": 30, **settings}
        )
        place = Rendezvous(
            plan, LOOPBACK, lambda number: replace(info, number=number), signals or Signals(), 20, tmp_path
        )
        opened.append(place)
        return place

    yield meet
    for place in reversed(opened):  # who keeps the store goes last
        place.close(is_over=False)


def rounds(*places, fewest=2):
    """Return the next round of several rendezvous, of so many at least."""
    found = {}

    def join(place):
        try:
            found[place.info.number] = place.next_round(fewest)[1:]
        except Exception as error:  # noqa: BLE001 - looked at by the test
            found[place.info.number] = error

    threads = [threading.Thread(target=join, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_two_meet_and_meet_again(meet):
    """The first keeps the store; both get places in one round, and in the next; the end sends others home."""
    first = meet()
    second = meet()
    assert first.is_keeper and not second.is_keeper
    assert [place.info.number for place in (first, second)] == [0, 1]
    for _ in range(2):
        found = rounds(first, second)
        assert sorted(place for place, _ in found.values()) == [0, 1]
        assert {count for _, count in found.values()} == {2}
    first.values.put("begun", True)
    spare = meet()
    waiting = threading.Timer(0.5, lambda: first.close(is_over=True))
    waiting.start()
    with pytest.raises(NotNeeded):
        spare.next_round(2)
    waiting.join()


def test_fewer_meet_again(meet, monkeypatch):
    """Where some have gone on without the others, so many are enough; they do not wait long for more."""
    monkeypatch.setattr(rounds_module, "LAST_CALL_S", 0.2)
    first = meet()
    second = meet()
    rounds(first, second)
    second.close(is_over=False)
    assert rounds(first, fewest=1) == {0: (0, 1)}


def test_one_that_does_not_fit(meet):
    """Before the run has begun all hear of it; afterwards only the one that does not fit."""
    first = meet()
    other = replace(CARD, code="d" * 64)
    with pytest.raises(ConfigError, match="code of the program"):
        meet(info=other)
    with pytest.raises(ConfigError, match="code of the program"):
        first.next_round(2)


def test_one_that_does_not_fit_and_comes_late(meet):
    """The run that is going on is not disturbed."""
    first = meet()
    first.values.put("begun", True)
    with pytest.raises(ConfigError, match="code of the program"):
        meet(info=replace(CARD, code="d" * 64))
    first.check()


def test_clocks_apart(meet, monkeypatch, capfd):
    """A clock one minute ahead is told by name; the hosts meet all the same, for each has its own steady clock."""
    first = meet()
    ahead = SimpleNamespace(time=lambda: time.time() + 60, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(module, "time", ahead)
    second = meet()
    assert "is 60 s ahead of that of host 0" in capfd.readouterr().err
    assert {count for _, count in rounds(first, second).values()} == {2}


@pytest.mark.slow
def test_nobody_else_comes(meet):
    """In time, with the names of those who have."""
    alone = meet(join_s=2)
    with pytest.raises(ConfigError, match=r"expected 2 hosts .* within 2 s .* got 1: host 0 \(here"):
        alone.next_round(2)


def test_nobody_keeps_the_place(meet):
    """A host that is not the first does not wait for ever, and says what it has met; a signal ends the waiting."""
    with pytest.raises(LaunchError, match=r"no host answers at the rendezvous .* after 1 s .*nothing listens there"):
        meet(node_rank=1, join_s=1)
    signals = Signals()
    signals.events.put(Signalled(15))
    with pytest.raises(Interrupted):
        meet(signals, node_rank=1)


@pytest.mark.slow
def test_the_place_of_somebody_else(meet, monkeypatch):
    """A store without our job, one with another secret, and what is no store at all, are told from ours."""
    monkeypatch.setattr(module, "_ANSWER_S", 1.0)
    monkeypatch.setattr(client_module, "_HANDSHAKE_S", 1.0)
    with contextlib.closing(Server(listen("127.0.0.1", 0), key_of("one secret of many"))) as store:
        with pytest.raises(LaunchError, match="is no launcher of unisono with the job 'none'"):
            meet(port=store.port, secret="one secret of many")
        with pytest.raises(LaunchError, match=r"has another secret. Hint: give all hosts the same UNISONO_SECRET"):
            meet(port=store.port, secret="another secret")
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(LaunchError, match="is no store of unisono"):
        meet(port=server.getsockname()[1])


def test_node_rank_0_on_the_wrong_machine(meet):
    """The endpoint must be its own: an address that is nobody's here is refused at once."""
    with pytest.raises(ConfigError, match=r"--node-rank 0 is the rendezvous host, but 192\.0\.2\.1:29999"):
        meet(host="192.0.2.1", port=29999, node_rank=0)


def test_the_stores_listen_on_one_address(meet):
    """Neither the launchers' store nor the workers' two can be reached by another address of this machine."""
    place = meet()
    with contextlib.ExitStack() as stores:
        ports = _serve_workers("127.0.0.1", "of the workers of a test", stores)
        check_addresses(place._plan.port, *ports)


def check_addresses(*ports):
    for number in ports:
        socket.create_connection(("127.0.0.1", number), timeout=5).close()
        with contextlib.closing(socket.socket()) as other, pytest.raises(ConnectionRefusedError):
            other.connect(("127.0.0.2", number))
