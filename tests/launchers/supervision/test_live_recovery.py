"""The launcher's rule of which deaths the others live through, and what it says to whom."""

import queue

import pytest

from unisono.launchers.supervision.live_recovery import Channels, LiveRecovery, Told

KILLED = -9


class Launcher:
    """A rule with all workers within their steps, and what it has sent and said."""

    def __init__(self, size=3, is_open=True):
        self.sent, self.said = [], []
        self.live = LiveRecovery(range(size), lambda rank, message: self.sent.append((rank, message)), self.said.append)
        for rank in range(size) if is_open else ():
            self.live.heard(Told(rank, {"open": True, "why": ""}))

    def dies(self, rank, code=KILLED, place=(4, -1), *, has_report=False):
        return self.live.died(rank, code, place, has_report=has_report)

    def ready(self, epoch, rank, passed=7, refusal=""):
        message = {"ready": epoch, "passed": passed, "refusal": refusal, "offer": f"at {rank}"}
        return self.live.heard(Told(rank, message))


def test_a_death_that_the_others_live_through():
    """All are called, told the new world when all are ready, and the dead one counts no more when all are up."""
    launcher = Launcher()
    assert launcher.dies(1) == ""
    assert launcher.said == ["rank 1 was killed by SIGKILL in step 4; 2 workers go on in the same step."]
    assert launcher.sent == [(rank, {"halt": 1, "members": (0, 2)}) for rank in (0, 2)]
    launcher.sent.clear()
    assert [launcher.ready(1, 2, passed=8), launcher.ready(1, 0)] == ["", ""]
    world = {"form": 1, "members": (0, 2), "passed": 8, "offer": "at 0"}
    assert launcher.sent == [(0, world), (2, world)]
    assert (launcher.live.is_forming, launcher.live.excluded) == (True, set())
    for rank in (0, 2):
        launcher.live.heard(Told(rank, {"up": 1}))
    assert (launcher.live.is_forming, launcher.live.excluded) == (False, {1})


@pytest.mark.parametrize(
    ("how", "reason", "is_told"),
    [
        (lambda one: one.dies(1, code=1), "it ended by an error of its own", False),
        (lambda one: one.dies(1, has_report=True), "it ended by an error of its own", False),
        (lambda one: one.dies(0), "it was the leader", True),
        (
            lambda one: one.dies(1, place=(4, 2)) or one.dies(2, place=(4, 2)),
            "a worker died in step 4, replica 2",
            True,
        ),
        (lambda one: one.dies(1) or one.ready(1, 2, refusal="it is busy"), "it is busy", True),
        (lambda one: one.live.ended(2) or one.dies(1), "a worker has ended already", True),
        (lambda one: one.live.heard(Told(2, {"open": False, "why": ""})) or one.dies(1), "not all workers were", True),
    ],
)
def test_what_ends_all_workers(how, reason, is_told):
    """The reason is returned, said where a death was not the program's own, and told to the workers that wait."""
    launcher = Launcher()
    assert how(launcher).startswith(reason)
    assert [text for text in launcher.said if reason in text] == launcher.said[-1:] * is_told
    assert launcher.sent[-1][1]["leave"].startswith(reason)
    assert launcher.dies(2)  # and nothing is lived through any more


def test_workers_that_do_not_meet_in_time(monkeypatch):
    """Nobody is waited for for ever, neither until all have frozen nor until they have met."""
    launcher = Launcher()
    launcher.dies(1)
    assert launcher.live.look() == ""
    monkeypatch.setattr("unisono.launchers.supervision.live_recovery._FORM_S", -1.0)
    launcher.ready(1, 0)
    assert launcher.live.look() == ""
    launcher.ready(1, 2)
    assert launcher.live.look() == "they have not met in time"
    second = Launcher()
    monkeypatch.setattr("unisono.launchers.supervision.live_recovery._GATHER_S", -1.0)
    second.dies(2)
    assert second.live.look() == "they have not met in time"


def test_why_it_is_off_is_said_once():
    """Each worker tells it; a reader sees one line."""
    launcher = Launcher(is_open=False)
    for rank in range(3):
        launcher.live.heard(Told(rank, {"open": False, "why": "the strategy is ddp"}))
    assert [text.partition(". ")[0] for text in launcher.said] == ["live recovery is off: the strategy is ddp"]


def test_messages_are_lines_both_ways():
    """What one end sends the other one hears; a worker that is gone is no error."""
    heard = queue.SimpleQueue()
    channels = Channels(heard.put)
    theirs = channels.open(5)
    channels.send(5, {"halt": 1, "members": [5]})
    assert theirs.recv(100) == b'{"halt": 1, "members": [5]}\n'
    theirs.sendall(b'{"up": 1}\n')
    assert heard.get(timeout=10) == Told(5, {"up": 1})
    theirs.close()
    channels.send(5, {"leave": "all"})
    channels.close()
