"""Which workers are started for those that have died: the rule, played without a process."""

from unisono.launchers.supervision.replacements import Replacements
from unisono.launchers.supervision.restarts import Ending


def died(done=0, error="", step=3):
    return Ending(rank=-1, what="was killed", step=step, done=done, error=error)


def test_progress_makes_replacements_free():
    """One for each death, while steps are done in between; numbers are not used again."""
    rule, members = Replacements(2, max_restarts=1), 2
    assert rule.start(members) == []
    for number in range(2, 6):
        rule.died(died(done=number), has_joined=True)
        assert rule.start(1) == [number]
        assert rule.invite(1) == []
        rule.ready(number)
        assert (rule.invite(1), rule.invite(1)) == ([number], [])
        rule.became_member(number)
        rule.joined()
    assert rule.why_not == ""


def test_deaths_at_one_place_come_to_an_end():
    """A sample that kills whoever computes it does not kill for ever."""
    rule = Replacements(3, max_restarts=2)
    for number in range(3):
        rule.died(died(), has_joined=True)
        assert rule.start(2) == ([3 + number] if number < 2 else [])
        rule.became_member(3 + number)
    assert "made no progress" in rule.why_not


def test_where_none_were_asked_for_there_is_no_reason():
    """How a run that has ended would go on, by its checkpoint, is none: this one goes on."""
    none = Replacements(2, 0, 0)
    none.died(Ending(rank=-1, what="was killed", step=9, done=8, saved=8), has_joined=True)
    assert (none.why_not, none.start(1)) == ("", [])


def test_workers_that_never_join_come_to_an_end():
    """Also where the others make progress meanwhile."""
    rule = Replacements(2, max_restarts=1)
    rule.died(died(done=1), has_joined=True)
    (number,) = rule.start(1)
    for done in (2, 3):
        rule.became_member(number)
        rule.died(died(done=done, step=0), has_joined=False)
        found = rule.start(1)
        number = found[0] if found else number
    assert found == []
    assert rule.why_not == "2 workers in a row have ended before they had joined"


def test_spares_wait():
    """So many more are there from the start; a place that is taken is filled as restarts allow."""
    rule = Replacements(2, spares=2)
    assert rule.start(2) == [2, 3]
    rule.ready(3)
    assert rule.invite(2) == []
    rule.died(died(), has_joined=True)
    assert (rule.invite(1), rule.start(1)) == ([3], [])
    assert rule.stop() == [2, 3]


def test_another_size():
    """More are started at once, beside the spares; of those that are not needed the newest are to be ended."""
    rule = Replacements(2, spares=1)
    assert rule.start(2) == [2]
    assert (rule.resize(4, 2), rule.start(2)) == ([], [3, 4])
    for number in (2, 3, 4):
        rule.ready(number)
    assert rule.invite(2) == [2, 3]
    assert (rule.resize(2, 2), rule.start(2), rule.invite(2)) == ([3, 4], [], [])
    assert rule.is_coming
    rule.stop()
    assert not rule.is_coming
