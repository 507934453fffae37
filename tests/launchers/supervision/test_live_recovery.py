"""The launcher's rule of which deaths the others live through, and what it says to whom."""

import pytest

from unisono.launchers.control import Asked
from unisono.launchers.supervision.channels import Told
from unisono.launchers.supervision.live_recovery import LiveRecovery
from unisono.launchers.supervision.replacements import Replacements

KILLED = -9


class Launcher:
    """A rule with all workers within their steps, and what it has sent and said."""

    def __init__(self, size=3, is_open=True, spares=0, budget=0, sizes=(1, 0), **how):
        self.sent, self.said = [], []
        send, more = lambda rank, message: self.sent.append((rank, message)), Replacements(size, spares, budget)
        self.live = LiveRecovery(range(size), send, self.said.append, more, sizes, **how)
        for rank in range(size) if is_open else ():
            self.live.heard(Told(rank, {"open": True, "why": "", "replicas": 8, "directory": "/runs/a"}))

    def dies(self, rank, code=KILLED, place=(4, -1), *, has_report=False):
        return self.live.died(rank, code, place, has_report=has_report)

    def leaves(self, rank):
        return self.live.heard(Told(rank, {"open": False, "why": ""}))

    def begins(self, rank):
        return self.live.heard(Told(rank, {"open": True, "why": ""}))

    def finishes(self, rank, passed=9):
        return self.live.heard(Told(rank, {"finished": passed}))

    def ready(self, epoch, rank, passed=7, refusal=""):
        message = {"ready": epoch, "passed": passed, "refusal": refusal, "offer": f"at {rank}"}
        return self.live.heard(Told(rank, message))


def test_a_death_that_the_others_live_through():
    """All are called, told the new world when all are ready, and the dead one counts no more when all are up."""
    launcher = Launcher()
    assert launcher.dies(1) == ""
    assert launcher.said == ["rank 1 was killed by SIGKILL in step 4; 2 workers go on without it."]
    assert launcher.sent == [(rank, {"halt": 1, "members": (0, 2), "deaths": {1: 4}}) for rank in (0, 2)]
    launcher.sent.clear()
    assert [launcher.ready(1, 2, passed=8), launcher.ready(1, 0)] == ["", ""]
    world = {"form": 1, "members": (0, 2), "passed": 8, "offer": "at 0", "door": False}
    assert launcher.sent == [(0, world), (2, world)]
    assert (launcher.live.is_forming, launcher.live.excluded) == (True, set())
    for rank in (0, 2):
        launcher.live.heard(Told(rank, {"up": 1}))
    assert (launcher.live.is_forming, launcher.live.excluded) == (False, {1})


def test_the_leader_dies_while_the_others_finish():
    """Who has finished is not waited for; its last meeting is told to those that are still in it."""
    launcher = Launcher()
    launcher.finishes(2)
    assert (launcher.live.can_lose(0), launcher.live.can_lose(2)) == (True, False)
    assert launcher.dies(0) == ""
    launcher.sent.clear()
    assert launcher.ready(1, 1, passed=8) == ""
    assert launcher.sent[0] == (1, {"form": 1, "members": (1,), "passed": 9, "offer": "at 1", "door": False})
    assert launcher.finishes(1) == launcher.live.ended(2) == launcher.live.ended(1) == ""
    assert (launcher.live.is_forming, launcher.live.excluded) == (False, {0})


@pytest.mark.parametrize("have_ended", [False, True])
def test_a_death_at_the_last_meeting(have_ended):
    """All others have finished, or ended: whatever they had met for is done, nobody is missing, nobody is started."""
    launcher = Launcher(budget=3)
    for rank in (0, 2):
        launcher.finishes(rank)
        assert not have_ended or launcher.live.ended(rank) == ""
    assert launcher.dies(1) == ""
    assert launcher.said == ["rank 1 was killed by SIGKILL in step 4; the others had finished their steps."]
    assert (launcher.sent, launcher.live.is_forming, launcher.live.excluded) == ([], False, {1})
    assert launcher.live.start() == []


@pytest.mark.parametrize(
    ("how", "reason", "is_told"),
    [
        (lambda one: one.dies(1, code=1), "it ended by an error of its own", False),
        (lambda one: one.dies(1, has_report=True), "it ended by an error of its own", False),
        (
            lambda one: one.dies(1, place=(4, 2)) or one.dies(2, place=(4, 2)),
            "a worker died in step 4, replica 2",
            True,
        ),
        (lambda one: one.dies(1) or one.ready(1, 2, refusal="it is busy"), "it is busy", True),
        (lambda one: one.live.ended(2) or one.dies(1), "a worker has ended already", True),
        (lambda one: one.leaves(2) or one.dies(1), "a worker has left its steps", True),
        (lambda one: one.dies(1) or one.leaves(2), "a worker has left its steps early", True),
        (lambda one: one.finishes(1) or one.dies(1), "its steps were over", True),
        (lambda one: one.finishes(2) or one.dies(1) or one.begins(2), "a worker that had finished has begun", True),
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
    monkeypatch.setattr("unisono.launchers.supervision.live_recovery._GATHER_S", -1.0)
    launcher.ready(1, 0)
    assert launcher.live.look() == ""
    launcher.ready(1, 2)
    assert launcher.live.look() == "they have not met in time"
    second = Launcher()
    second.dies(2)
    assert second.live.look() == "they have not met in time"


def test_why_it_is_off_is_said_once():
    """Each worker tells it; a reader sees one line."""
    launcher = Launcher(is_open=False)
    for rank in range(3):
        launcher.live.heard(Told(rank, {"open": False, "why": "the strategy is ddp"}))
    assert [text.partition(". ")[0] for text in launcher.said] == ["live recovery is off: the strategy is ddp"]
    assert launcher.dies(1) == "the strategy is ddp"  # and not that somebody had not begun


def test_why_it_is_off_where_nobody_has_asked_for_it():
    """A run without a death says nothing of it; a death says in one line why the others do not go on."""
    launcher = Launcher(is_open=False, is_asked=False)
    for rank in range(3):
        launcher.live.heard(Told(rank, {"open": False, "why": "the strategy is ddp"}))
    assert launcher.said == []
    assert launcher.dies(1) == "the strategy is ddp"
    told = "rank 1 was killed by SIGKILL in step 4; the other workers cannot go on without it: the strategy is ddp."
    assert launcher.said == [told]


def test_a_death_before_the_first_step():
    """Who has died is said first, then why nobody goes on."""
    launcher = Launcher(is_open=False)
    why = launcher.dies(1, place=(0, -1))
    assert why == "not all workers had begun their steps"
    assert launcher.said == [f"rank 1 was killed by SIGKILL; the other workers cannot go on without it: {why}."]


def grown(launcher, number=3, epoch=1):
    """Let a rank that is ready join the two that are left in a world of an epoch."""
    launcher.live.heard(Told(number, {"arrived": True}))
    for rank in (0, 2):
        launcher.live.heard(Told(rank, {"door": epoch}))
    for rank in (0, 2, number):
        launcher.ready(epoch + 1, rank)
    for rank in (0, 2, number):
        launcher.live.heard(Told(rank, {"up": epoch + 1}))


def lost(launcher):
    """Let rank 1 die, and the others meet."""
    launcher.dies(1)
    for rank in (0, 2):
        launcher.ready(1, rank)
    for rank in (0, 2):
        launcher.live.heard(Told(rank, {"up": 1}))


def test_a_rank_joins_in_place_of_one_that_has_died():
    """It is started at once, the others hear that it is ready, all are called from the door, and it is told when."""
    launcher = Launcher(budget=3)
    assert launcher.live.start() == []
    lost(launcher)
    assert (launcher.live.start(), launcher.live.start(), launcher.live.guests) == ([3], [], {3})
    launcher.sent.clear()
    launcher.live.heard(Told(3, {"arrived": True}))
    assert launcher.sent == [(0, {"knock": True}), (2, {"knock": True})]
    launcher.sent.clear()
    grown(launcher)
    assert launcher.sent[:3] == [
        (rank, {"halt": 2, "members": (0, 2, 3), "door": True, "deaths": {1: 4}}) for rank in (0, 2, 3)
    ]
    assert launcher.sent[3][1] | {"form": 2, "members": (0, 2, 3), "door": True} == launcher.sent[3][1]
    assert launcher.live.guests == set()
    launcher.begins(3)
    assert launcher.said[-1].startswith("rank 3 has joined the others, 0.")
    assert launcher.dies(3, place=(9, -1)) == ""
    assert launcher.live.start() == [4]


def test_a_spare_is_started_with_the_others():
    """It joins though nothing may be restarted; none is started for it then."""
    launcher = Launcher(spares=1)
    assert launcher.live.start() == [3]
    launcher.live.heard(Told(3, {"arrived": True}))
    assert launcher.sent == []
    launcher.dies(1)
    assert launcher.sent[-1] == (2, {"halt": 1, "members": (0, 2), "deaths": {1: 4}})
    for rank in (0, 2):
        launcher.ready(1, rank)
    for rank in (0, 2):
        launcher.live.heard(Told(rank, {"up": 1}))
    assert launcher.sent[-2:] == [(0, {"knock": True}), (2, {"knock": True})]
    assert launcher.live.start() == []


@pytest.mark.parametrize(
    ("is_lost", "then"),
    [(False, "Nobody takes the place of one that dies."), (True, "The run goes on with fewer workers.")],
)
def test_a_spare_that_does_not_fit(is_lost, then):
    """What follows is said as it is: a run that has lost nobody has not fewer workers."""
    launcher = Launcher(spares=1)
    launcher.live.start()
    if is_lost:
        launcher.dies(1)
    launcher.live.heard(Told(3, {"refused": "it has another score"}))
    assert launcher.said[-1] == f"rank 3 cannot join: it has another score. {then}"
    assert launcher.live.unwanted == {3}


def test_who_dies_while_it_joins():
    """The others go on, also where it has failed by an error; one that is ready but not called harms nobody."""
    launcher = Launcher(budget=2)
    lost(launcher)
    launcher.live.start()
    grown(launcher)
    assert launcher.dies(3, code=1, place=(0, -1), has_report=True) == ""
    assert launcher.said[-1] == "rank 3 has ended with code 1 before it had joined the others."
    assert launcher.sent[-1][1] == {"halt": 3, "members": (0, 2), "deaths": {1: 4}}
    assert launcher.live.start() == [4]
    assert launcher.dies(4, code=1, place=(0, -1)) == ""
    assert launcher.said[-1].startswith("No other worker is started in its place: ")
    assert launcher.live.start() == []
    assert launcher.live.excluded >= {1, 4}


def test_nobody_is_left_that_has_the_state():
    """Where all die but one that has not got it yet, the workers are started again."""
    launcher = Launcher(size=2, budget=3)
    launcher.dies(1)
    launcher.ready(1, 0)
    launcher.live.heard(Told(0, {"up": 1}))
    assert launcher.live.start() == [2]
    launcher.live.heard(Told(2, {"arrived": True}))
    launcher.live.heard(Told(0, {"door": 1}))
    assert launcher.dies(0, place=(5, -1)) == "no worker is left that has the state"


@pytest.mark.parametrize(
    "how",
    [
        lambda one: one.live.heard(Told(3, {"refused": "it has another score"})),
        lambda one: one.live.heard(Told(0, {"open": False, "why": "the strategy is ddp"})),
        lambda one: one.live.ended(0),
    ],
)
def test_nobody_joins_any_more(how):
    """A worker that does not fit, a run that cannot be joined, and the end: those that wait are to be ended."""
    launcher = Launcher(spares=1, budget=3)
    launcher.live.start()
    how(launcher)
    assert launcher.live.unwanted == {3}
    assert launcher.live.start() == []


def asks(launcher, workers):
    """Ask for so many workers; return the list that gets the answer."""
    answers = []
    launcher.live.resize(Asked(workers, answers.append))
    launcher.live.look()
    return answers


def test_a_world_that_is_made_smaller():
    """Those that came last are called out at the door; what becomes of them then matters to nobody."""
    launcher = Launcher(size=4)
    answers = asks(launcher, 2)
    assert launcher.sent == [(rank, {"knock": True}) for rank in range(4)]
    launcher.sent.clear()
    for rank in range(4):
        launcher.live.heard(Told(rank, {"door": 0}))
    called = {"halt": 1, "members": (0, 1), "released": (2, 3), "door": True}
    assert launcher.sent == [(rank, called) for rank in range(4)]
    assert launcher.said == ["ranks 2, 3 are released: 2 workers."]
    assert launcher.leaves(2) == launcher.live.ended(2) == launcher.dies(3) == ""
    assert launcher.live.excluded == {2, 3} and launcher.live.can_lose(3)
    assert answers == []
    for rank in (0, 1):
        launcher.ready(1, rank)
    for rank in (0, 1):
        launcher.live.heard(Told(rank, {"up": 1}))
    launcher.live.look()
    assert [answer | {"seconds": 0} for answer in answers] == [
        {"workers": 2, "before": 4, "left": [2, 3], "joined": [], "seconds": 0}
    ]
    assert launcher.live.start() == []


def test_a_world_that_is_made_larger():
    """Workers are started and invited as in place of those that have died, also where no restart is allowed."""
    launcher = Launcher()
    answers = asks(launcher, 4)
    assert (launcher.live.start(), launcher.sent) == ([3], [])
    launcher.live.heard(Told(3, {"arrived": True}))
    assert launcher.sent == [(rank, {"knock": True}) for rank in range(3)]
    for rank in range(3):
        launcher.live.heard(Told(rank, {"door": 0}))
    for what in ("ready", "up"):
        for rank in range(4):
            launcher.ready(1, rank) if what == "ready" else launcher.live.heard(Told(rank, {"up": 1}))
    launcher.live.look()
    assert answers == []  # it has nothing of the run yet
    launcher.begins(3)
    launcher.live.look()
    assert (answers[0]["joined"], launcher.live.wanted) == ([3], 4)


def test_what_is_refused_and_what_cannot_be():
    """Too few, too many, no number; nobody left to join, another wish, the end."""
    launcher = Launcher()
    for workers in (0, 9, "2", True, None):
        assert "expected 1 to 8 workers" in asks(launcher, workers)[0]["refused"]
    assert "have not begun" in asks(Launcher(is_open=False), 2)[0]["refused"]
    first = asks(launcher, 4)
    second = asks(launcher, 5)
    assert first == [{"failed": "5 have been asked for since"}]
    for number in launcher.live.start():
        assert launcher.dies(number, code=1) == ""
    launcher.live.look()
    assert second[0]["failed"].startswith("there are 3 workers, and no more can join: 1 workers in a row have ended")
    third = asks(launcher, 2)
    launcher.finishes(0)
    launcher.dies(1, code=1)
    launcher.live.look()
    assert third == [{"failed": "the workers are being ended"}]
    last = Launcher()
    answers = asks(last, 2)
    last.finishes(0)
    last.live.look()
    assert answers == [{"failed": "the run is ending"}]


def test_fewer_than_the_least():
    """With fewer workers than --elastic allows they are all started again."""
    launcher = Launcher(sizes=(2, 3))
    assert launcher.dies(0) == ""
    assert launcher.dies(1) == "1 of at least 2 workers are left"
    assert "expected 2 to 3 workers" in asks(Launcher(sizes=(2, 3)), 1)[0]["refused"]
