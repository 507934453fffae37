"""Signs of life through a store: what others tell becomes an event, silence a loss, and a dead store is noticed."""

import contextlib
import queue
import threading
import time
from dataclasses import asdict

import pytest

from unisono.errors import PeerLost
from unisono.launchers.local import Signals
from unisono.launchers.supervision.restarts import Ending
from unisono.launchers.worker_group import Called
from unisono.nodes.peer_monitor import Attempt, PeerMonitor, beat_key
from unisono.nodes.values import SharedValues
from unisono.nodes.verdicts import NodeEnding
from unisono.store.client import Client
from unisono.store.secret import key_of
from unisono.store.server import Server, listen

KEY = key_of("of these tests, long enough")


@pytest.fixture
def server():
    """A store, on loopback."""
    here = Server(listen("127.0.0.1", 0), KEY)
    yield here
    here.close()


@pytest.fixture
def boards(server):
    """Shared values of the job, and those of one attempt."""
    client = Client("127.0.0.1", server.port, KEY)
    yield SharedValues(client, "job"), SharedValues(client, "attempt")
    client.close()


@pytest.fixture
def start(boards):
    """Start a peer monitor with its attempt."""
    started = []

    def start(number, silence_s, num_waiting=None, others=None):
        peer_monitor = PeerMonitor(boards[0], number, silence_s, Signals())
        attempt = Attempt(boards[1], [0, 1], number, num_waiting, others)
        peer_monitor.enter(attempt)
        started.append(peer_monitor)
        return peer_monitor, attempt, peer_monitor._signals.events

    yield start
    for peer_monitor in started:
        peer_monitor.close()


def test_values(boards):
    """A board gives back JSON, decides who was first, and counts; `None` stands for nothing yet."""
    values, other = boards
    assert values.look("a") is None
    values.put("a", {"x": [1, None, "é"]})
    assert values.look("a") == {"x": [1, None, "é"]}
    assert other.look("a") is None
    assert (values.settle("b", 1), values.settle("b", 2)) == (1, 1)
    assert [values.number("c") for _ in range(3)] == [0, 1, 2]
    assert values.asked("c") == 3


def test_a_call_that_would_wait_for_ever(boards):
    """A guarded board gives up when it is told why, also in the midst of a call; afterwards it goes on as before."""
    why = []
    values = boards[0].guarded(lambda: why[0] if why else "")
    boards[0].put("a", 1)
    threading.Timer(0.3, lambda: why.append("the store is gone")).start()
    with pytest.raises(PeerLost, match="the store is gone"):
        values._ask(b"get", b"60000", b"never")
    why.clear()
    assert values.look("a") == 1


@contextlib.contextmanager
def server_that_stands_still(server):
    """Let a server take connections and answer nobody, as one behind a cut link does."""
    going_on = threading.Event()
    accept = server._accept

    def stand_still():
        going_on.wait()
        accept()

    server._accept = stand_still
    try:
        yield
    finally:
        going_on.set()


def test_silence_is_a_loss(start):
    """A host that never beats is lost, and the supervisor hears it once."""
    _, attempt, events = start(0, 0.5)
    assert events.get(timeout=60) == Called("a host is lost")
    assert attempt.lost == {1}
    assert attempt.ending_of(1) == NodeEnding(kind="lost")
    with pytest.raises(queue.Empty):
        events.get(timeout=0.5)


@pytest.mark.slow
def test_the_living_are_not_lost(start, boards):
    """Two that beat hear each other; the control: when one falls silent, the other notices."""
    peer_monitor, attempt, events = start(0, 3.0)
    other, _, _ = start(1, 3.0)
    while (boards[0].look(beat_key(1)) or [0])[0] < 5:
        time.sleep(0.05)
    assert not attempt.lost and not peer_monitor.cut_off
    other.close()
    assert events.get(timeout=60) == Called("a host is lost")


def test_endings_of_others(start, boards):
    """A failure elsewhere ends our workers at once; a good end, and a stop that was agreed, do not."""
    _, attempt, events = start(0, 0)
    boards[1].put("ending/1", asdict(NodeEnding(kind="stopped", step=3)))
    while attempt.ending_of(1) is None:
        time.sleep(0.02)
    assert attempt.ending_of(1).step == 3
    assert events.empty()
    attempt.endings.clear()
    failed = NodeEnding(kind="failed", exit_code=3, ending=Ending(rank=1, what="x", samples=(1,)))
    boards[1].put("ending/1", asdict(failed))
    assert events.get(timeout=60) == Called("the workers of host 1 have ended")
    assert attempt.ending_of(1) == failed


def test_a_host_that_waits(start):
    """Who asks for newcomers calls for a gentle stop on all hosts, again and again: it may not be the time yet."""
    _, _, here = start(0, 0, lambda gone: 1)
    _, _, there = start(1, 0)
    for events in (here, there, here, there):
        assert events.get(timeout=60) == Called("a host has come", is_gentle=True)


@pytest.mark.slow
def test_a_place_that_has_become_free(start):
    """A host that was left out makes room for another one, when the others' workers have begun their steps."""
    asked, others = queue.SimpleQueue(), Others(0, is_armed=False)
    _, _, events = start(0, 0, lambda gone: asked.put(gone) or gone, others)
    with pytest.raises(queue.Empty):
        events.get(timeout=2)
    assert asked.empty()
    others.is_armed = True
    assert events.get(timeout=60) == Called("a host has come", is_gentle=True)
    assert asked.get(timeout=60) == 1


def test_a_store_that_is_gone(start, server):
    """A server that ends is told; the control is every test above."""
    peer_monitor, _, events = start(0, 0)
    server.close()
    assert isinstance(events.get(timeout=60), Called)
    assert peer_monitor.cut_off.startswith("the connection to the store broke: ")


class Others:
    """The hosts that are left; their workers can go on, or not yet."""

    def __init__(self, *hosts, is_armed):
        self.hosts, self.is_armed = hosts, is_armed


@pytest.mark.slow
@pytest.mark.parametrize("others", [Others(0, 2, is_armed=True), Others(1, 2, is_armed=False)])
def test_a_store_that_workers_can_do_without(start, server, others):
    """Its loss is for the majority to judge, or has been; the control: once they cannot go on, it ends the workers."""
    peer_monitor, attempt, events = start(0, 0.5)
    attempt.others = others
    server.close()
    with pytest.raises(queue.Empty):
        events.get(timeout=2)
    assert not peer_monitor.cut_off
    attempt.others = Others(0, 1, is_armed=False)
    assert isinstance(events.get(timeout=60), Called)


@pytest.mark.slow
def test_silence_that_workers_can_do_without(start):
    """Others judge it; the control: once workers cannot go on without a host, it is a loss."""
    _, attempt, events = start(0, 0.5, others=Others(0, 1, is_armed=True))
    with pytest.raises(queue.Empty):
        events.get(timeout=2)
    attempt.others.is_armed = False
    assert events.get(timeout=60) == Called("a host is lost")


@pytest.mark.slow
def test_a_store_in_the_place_of_a_lost_one(start, boards):
    """What is said there concerns another attempt; the control: in our own store it ends the workers."""
    boards[1].put("ending/1", asdict(NodeEnding(kind="failed", exit_code=1)))
    _, attempt, events = start(2, 0, others=Others(1, 2, is_armed=False))
    with pytest.raises(queue.Empty):
        events.get(timeout=2)
    attempt.others.hosts = (0, 1, 2)
    assert events.get(timeout=60) == Called("the workers of host 1 have ended")


def test_a_host_that_was_left_out(start):
    """It is waited for by nobody, and its silence is no loss."""
    _, attempt, _ = start(0, 0)
    attempt.others = Others(0, 2, is_armed=True)
    while attempt.ending_of(1) is None:
        time.sleep(0.02)
    assert (attempt.ending_of(1), attempt.lost) == (NodeEnding(kind="done"), set())


def test_a_store_that_does_not_answer(start, server):
    """A connection that is there, and over which nothing comes, is told after the longest silence."""
    with server_that_stands_still(server):
        peer_monitor, _, events = start(0, 1.0)
        assert isinstance(events.get(timeout=60), Called)
        assert "the store has not answered for" in peer_monitor.cut_off
