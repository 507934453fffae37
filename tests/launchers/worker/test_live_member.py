"""A worker's side of live recovery, over a real socket: what it says, and what it makes of the orders that it hears."""

import json
import queue
import socket
import threading

import pytest

from unisono.errors import PeerLost
from unisono.launchers.membership import Form
from unisono.launchers.worker.live_member import LiveMember, WorldChanged, join
from unisono.launchers.worker.member import Member


class Worker:
    """Member 2, and the launcher's end of its socket."""

    def __init__(self):
        self._ours, theirs = socket.socketpair()
        self.lines = self._ours.makefile("rb")
        self.live = LiveMember(theirs.detach(), 2)
        self.live.is_anchored = True
        self.live.offer = lambda size, epoch: f"{size} in {epoch}"

    def order(self, **message):
        """Send an order, and wait until it is known."""
        self._ours.sendall(json.dumps(message).encode() + b"\n")

    def close(self):
        """The launcher ends."""
        self.lines.close()
        self._ours.close()

    def said(self):
        return json.loads(self.lines.readline())


@pytest.fixture
def worker():
    found = Worker()
    yield found
    found.close()


def called(worker, epoch=1, members=(2, 3)):
    worker.order(halt=epoch, members=members)
    worker.live.await_call()


def test_a_process_has_one_member():
    """A second run of a process gets the same one, and is told so; another process's number is none."""
    ours, theirs = socket.socketpair()
    descriptor = theirs.detach()
    first, is_new = join(descriptor, 1)
    assert is_new
    assert join(descriptor, 1) == (first, False)
    ours.close()
    with pytest.raises(OSError, match="descriptor"):
        LiveMember(9999, 0)


def test_nobody_has_called(worker):
    """A meeting goes on, and asking costs a look at a flag."""
    assert not worker.live.is_called
    assert worker.live.at(5) is False


def test_it_completes_what_others_have_passed_and_moves(worker):
    """It says what it has passed and offers a place, as the first one; then meetings up to the world's are over."""
    called(worker)
    worker.order(form=1, members=[2, 3], passed=5, offer="2 in 1", door=True)
    assert worker.live.at(5) is True
    assert worker.said() == {"ready": 1, "passed": 4, "refusal": "", "offer": "2 in 1"}
    with pytest.raises(WorldChanged):
        worker.live.at(6)
    assert worker.live.move() == Form(1, (2, 3), 5, "2 in 1", is_door=True)
    assert not worker.live.is_called
    worker.live.up(1)
    assert worker.said() == {"up": 1}


def test_it_hears_in_which_step_others_have_died(worker):
    """With the call to a new world, by rank."""
    worker.order(halt=1, members=[2, 3], deaths={"1": 9})
    worker.live.await_call()
    assert worker.live.deaths == {1: 9}


def test_another_death_calls_again(worker):
    """It answers the newer call; only the first member offers a place."""
    called(worker)
    called(worker, 2, (1, 2))
    worker.order(form=2, members=[1, 2], passed=3, offer="by 1", door=False)
    with pytest.raises(WorldChanged):
        worker.live.at(4)
    answers = [worker.said()]
    if answers[0]["ready"] == 1:
        answers.append(worker.said())
    assert answers[-1] == {"ready": 2, "passed": 3, "refusal": "", "offer": ""}


def test_it_comes_to_the_door_and_waits(worker):
    """It says so, once, and is called with those that join; the knock is answered then."""
    worker.order(knock=True)
    worker.order(halt=1, members=[2, 3, 4])
    worker.order(form=1, members=[2, 3, 4], passed=7, offer="3 in 1", door=True)
    with pytest.raises(WorldChanged):
        worker.live.wait_at_door(8)
    assert worker.live.is_knocked
    assert worker.live.move().members == (2, 3, 4)
    assert not worker.live.is_knocked
    said = worker.said()
    assert (worker.said() if "door" in said else said)["ready"] == 1


def test_it_joins_others(worker):
    """It says that it is ready, has passed no meeting, and completes none of theirs; a newer call is followed."""
    worker.order(halt=3, members=[0, 2])
    worker.order(form=3, members=[0, 2], passed=40, offer="by 0", door=True)
    worker.live.enter()
    assert [worker.said(), worker.said()] == [
        {"arrived": True}, {"ready": 3, "passed": 0, "refusal": "", "offer": ""},
    ]  # fmt: skip
    worker.order(halt=4, members=[0, 2])
    worker.order(form=4, members=[0, 2], passed=40, offer="again by 0", door=True)
    assert worker.live.move().epoch in (3, 4)


def test_outside_of_a_step_it_refuses(worker):
    """Nothing could be begun again there; the launcher ends this world."""
    worker.live.is_anchored = False
    called(worker)
    worker.order(leave="a rank waits")
    with pytest.raises(PeerLost, match="cannot go on without it: a rank waits"):
        worker.live.at(5)
        worker.live.at(5)


def test_the_end_is_told(worker):
    """Who has finished says which meeting was its last; who leaves early that it has left."""
    worker.live.finish(12)
    worker.live.close()
    assert [worker.said(), worker.said()] == [{"finished": 12}, {"open": False, "why": ""}]


def test_the_launchers_word_is_waited_for_a_while(worker):
    """Who sees a peer dead leaves the decision to the launcher, but not for ever."""
    assert worker.live.is_word_due()
    worker.live.word_s = -1.0
    assert not worker.live.is_word_due()


def begun(act, *arguments):
    """Begin what may wait, beside us; return where its outcome will be."""
    outcome = queue.SimpleQueue()

    def run():
        try:
            outcome.put(act(*arguments))
        except (PeerLost, WorldChanged) as end:
            outcome.put(end)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def test_it_is_held_until_it_moves(worker):
    """Called again while it waits in a meeting, it freezes again; only the world of the newest call lets it go on."""
    called(worker)
    outcome = begun(worker.live.at, 4)
    assert worker.said()["ready"] == 1
    for epoch in (2, 3):
        worker.order(halt=epoch, members=[2])
        worker.order(form=epoch - 1, members=[2, 3], passed=9, offer="late", door=False)
        assert worker.said()["ready"] == epoch
    assert outcome.empty()
    worker.order(form=3, members=[2], passed=3, offer="1 in 3", door=False)
    assert isinstance(outcome.get(timeout=60), WorldChanged)


def test_one_that_is_not_held_is_found(worker, monkeypatch):
    """Negative control: called again, it goes on in its meeting."""
    advise = Member.advise
    thaws = lambda side, meeting: "go" if side.called > side.told > side.epoch else advise(side, meeting)  # noqa: E731
    monkeypatch.setattr(Member, "advise", thaws)
    called(worker)
    outcome = begun(worker.live.at, 4)
    assert worker.said()["ready"] == 1
    worker.order(halt=2, members=[2])
    assert outcome.get(timeout=60) is False


@pytest.mark.parametrize("is_closed_before", [True, False])
@pytest.mark.parametrize(
    ("act", "arguments"), [("at", [5]), ("wait_at_door", [5]), ("enter", []), ("refuse", ["it has other bits"])]
)
def test_no_wait_outlasts_the_connection(worker, act, arguments, is_closed_before):
    """A launcher that closes it says nothing any more: who waits for a word of it ends, and who comes later does."""
    if act == "at":
        called(worker)
    if is_closed_before:
        worker.close()
    outcome = begun(getattr(worker.live, act), *arguments)
    if not is_closed_before:
        worker.said()  # it waits, or is about to
        worker.close()
    error = outcome.get(timeout=60)
    assert isinstance(error, PeerLost)
    assert "closed its connection to this worker" in str(error)
