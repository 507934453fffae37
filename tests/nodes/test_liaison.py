"""Signs of life through a store: what others tell becomes an event, silence a loss, and a dead store is noticed."""

import queue
import threading
import time

import pytest
from torch.distributed import HashStore

from unisono.errors import PeerLost
from unisono.launchers.crew import Called
from unisono.launchers.local import Signals
from unisono.launchers.restarts import Ending
from unisono.nodes.board import Board
from unisono.nodes.liaison import Attempt, Liaison, beat_key
from unisono.nodes.verdicts import NodeEnding


@pytest.fixture
def boards():
    """A board of the job and one of an attempt."""
    store = HashStore()
    return Board(store, "job"), Board(store, "attempt")


@pytest.fixture
def start(boards):
    """Start a liaison with its attempt."""
    started = []

    def start(number, silence_s, num_waiting=None):
        liaison = Liaison(boards[0], number, silence_s, Signals())
        attempt = Attempt(boards[1], [0, 1], number, num_waiting)
        liaison.enter(attempt)
        started.append(liaison)
        return liaison, attempt, liaison._signals.events

    yield start
    for liaison in started:
        liaison.close()


def test_values(boards):
    """A board gives back JSON, decides who was first, and counts; `None` stands for nothing yet."""
    board, other = boards
    assert board.look("a") is None
    board.put("a", {"x": [1, None, "é"]})
    assert board.look("a") == {"x": [1, None, "é"]}
    assert other.look("a") is None
    assert (board.settle("b", 1), board.settle("b", 2)) == (1, 1)
    assert [board.number("c") for _ in range(3)] == [0, 1, 2]
    assert board.asked("c") == 3


def test_a_call_that_would_wait_for_ever(boards):
    """A guarded board gives up when it is told why, also in the midst of a call."""
    entered, why = threading.Event(), []

    class Stuck:
        def set(self, key, value):
            entered.set()
            time.sleep(60)

    board = boards[0].guarded(lambda: why[0] if why else "")
    board._store = Stuck()
    threading.Thread(target=lambda: (entered.wait(), why.append("the store is gone")), daemon=True).start()
    with pytest.raises(PeerLost, match="the store is gone"):
        board.put("a", 1)


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
    liaison, attempt, events = start(0, 3.0)
    other, _, _ = start(1, 3.0)
    while (boards[0].look(beat_key(1)) or [0])[0] < 5:
        time.sleep(0.05)
    assert not attempt.lost and not liaison.cut_off
    other.close()
    assert events.get(timeout=60) == Called("a host is lost")


def test_endings_of_others(start, boards):
    """A failure elsewhere ends our workers at once; a good end, and a stop that was agreed, do not."""
    _, attempt, events = start(0, 0)
    boards[1].put("ending/1", NodeEnding(kind="stopped", step=3).packed())
    while attempt.ending_of(1) is None:
        time.sleep(0.02)
    assert attempt.ending_of(1).step == 3
    assert events.empty()
    attempt.endings.clear()
    failed = NodeEnding(kind="failed", exit_code=3, ending=Ending(rank=1, what="x", samples=(1,)))
    boards[1].put("ending/1", failed.packed())
    assert events.get(timeout=60) == Called("the workers of host 1 have ended")
    assert attempt.ending_of(1) == failed


def test_a_host_that_waits(start):
    """Who asks for newcomers calls for a gentle stop, once, on all hosts."""
    _, _, here = start(0, 0, lambda: 1)
    _, _, there = start(1, 0)
    for events in (here, there):
        assert events.get(timeout=60) == Called("a host has come", is_gentle=True)
    with pytest.raises(queue.Empty):
        there.get(timeout=0.5)


def test_a_store_that_is_gone(start, boards):
    """A broken connection, and one that does not answer, are told; the control is every test above."""

    class Broken:
        def __init__(self, act):
            self.set = lambda key, value: act()
            self.check = lambda keys: act()

    def breaks():
        raise RuntimeError("Connection reset by peer\nstack")

    boards[0]._store = Broken(breaks)
    liaison, _, events = start(0, 1.0)
    assert isinstance(events.get(timeout=60), Called)
    assert liaison.cut_off == "the connection to the store broke: Connection reset by peer"
    boards[0]._store = Broken(lambda: time.sleep(30))
    liaison, _, events = start(0, 1.0)
    assert isinstance(events.get(timeout=60), Called)
    assert "the store has not answered for" in liaison.cut_off
