"""When another attempt follows: every case of the rule, without a process."""

import pytest

from unisono.launchers.supervision.restarts import Again, Ending, GiveUp, Restarts


def ending(rank=0, step=5, done=4, saved=0, **more):
    return Ending(rank=rank, what="it died", step=step, done=done, saved=saved, **more)


def test_no_restarts_unless_asked():
    """Zero restarts give up at once, and add no words to the failure."""
    assert Restarts(0, 2).judge(ending(saved=0, done=0)) == GiveUp("")
    assert Restarts(0, 2).judge(ending(saved=4, is_unkillable=True)) == GiveUp("")
    first = "Hint: no checkpoint has been written; the same command starts from the beginning. With --max-restarts 3"
    assert Restarts(0, 2).judge(ending(saved=0, done=3)).reason.startswith(first)
    for unknown in ({"error": "OSError"}, {"is_final": True}, {"is_unkillable": True}):
        assert Restarts(0, 2).judge(ending(saved=0, done=3, **unknown)) == GiveUp("")
    assert Restarts(0, 2, sees_all=False).judge(ending(saved=0, done=3)) == GiveUp("")
    assert Restarts(0, 2).judge(ending(saved=4, error="ScoreMismatch")) == GiveUp("")  # it has a hint of its own
    hint = "Hint: the newest checkpoint is of step 4; the same command goes on from there"
    by_itself = f"{hint}. With --max-restarts 3 (max_restarts=3) it does so by itself"
    assert Restarts(0, 2).judge(ending(saved=4)) == GiveUp(f"{by_itself}.")
    live = GiveUp(f"{by_itself}, with --live auto without going back.")
    assert Restarts(0, 2).judge(ending(saved=4, could_go_on_live=True)) == live
    for cause in ({"error": "OSError"}, {"is_final": True}):
        assert Restarts(0, 2).judge(ending(saved=4, **cause)) == GiveUp(f"{hint}, once the cause is removed.")


def test_what_is_said_of_checkpoints():
    """A later one only where steps were done since; of a complete run, that nothing is left to train."""
    for more, said in (
        ({"done": 6}, "is of step 4 or later; the"),
        ({"last": 4}, "all 4 steps are done and saved; the"),
    ):
        assert said in Restarts(0, 2).judge(ending(saved=4, error="OSError", **more)).reason


def test_a_mistake_that_all_met_is_not_tried_again():
    """Before the first step every worker has met it: the reason says so; without restarts nothing is added."""
    met = ending(step=1, done=0, error="NameError", is_alike=True)
    again = "before the first step, so the same program would fail again."
    assert Restarts(3, 2).judge(met) == GiveUp(f"No restart: every worker has met it {again}")
    assert Restarts(3, 1).judge(met) == GiveUp(f"No restart: it came {again}")
    assert Restarts(0, 2).judge(met) == GiveUp("")


def test_progress_makes_restarts_free():
    """However often a run dies, it goes on while every attempt comes further, by a step or by a checkpoint."""
    rule = Restarts(1, 2)
    for step in range(1, 100):
        assert rule.judge(ending(rank=1, step=step + 1, done=step)) == Again((0, 1))
    assert rule.judge(ending(rank=1, step=100, done=99, saved=99)) == Again((0, 1))
    assert (rule.num_restarts, rule.num_without_progress) == (100, 0)


def test_the_budget_counts_restarts_without_progress():
    """Attempts that all end at the same step use up the budget; the reason names step, replica and samples."""
    rule = Restarts(2, 1)
    poison = ending(replica=3, samples=(7, 8))
    assert [type(rule.judge(poison)) for _ in range(3)] == [Again, Again, Again]
    decision = rule.judge(poison)
    assert isinstance(decision, GiveUp)
    assert decision.reason == (
        "2 restarts in a row made no progress (--max-restarts); the last attempt ended in step 5, replica 3 "
        "(samples 7, 8). Hint: remove the cause; the same command starts from the beginning: no checkpoint has been "
        "written."
    )


def test_from_where_workers_start_again():
    """A checkpoint that any attempt has told of counts; who ends before the first step knows of none, and says so."""
    rule = Restarts(9, 1)
    rule.judge(ending(step=0, done=0))
    assert rule.start == "from the last checkpoint, if there is one"
    rule.judge(ending(step=1, done=0))
    assert rule.start == "from the beginning: no checkpoint has been written"
    rule.judge(ending(step=5, done=4))
    rule.judge(ending(step=0, done=0))
    assert rule.start == "from the beginning: no checkpoint has been written"
    rule.judge(ending(step=7, done=6, saved=4))
    rule.judge(ending(step=0, done=0))
    assert rule.start == "from the last checkpoint"
    part = Restarts(9, 1, sees_all=False)
    part.judge(ending(step=5, done=4))
    assert part.start == "from the last checkpoint, if there is one"


@pytest.mark.parametrize(
    ("poison", "words"),
    [
        (ending(replica=0), "ended in step 5, replica 0. Hint"),
        (ending(), "ended in step 5. Hint"),
        (ending(step=0, done=0), "ended before the first step. Hint"),
        (ending(samples=tuple(range(16))), "11, 12, 13, 14, 15). Hint"),
        (ending(samples=tuple(range(17))), "11, 12, 13, 14, 15, ...). Hint"),
    ],
)
def test_the_reason_says_what_is_known(poison, words):
    """The first replica is one too; what is not known is left out, long lists are cut."""
    rule = Restarts(1, 1)
    reasons = [found.reason for found in (rule.judge(poison) for _ in range(3)) if isinstance(found, GiveUp)]
    assert reasons
    assert words in reasons[0]


def test_going_back_is_no_progress():
    """An attempt that ends before the former's last step has made none."""
    rule = Restarts(1, 1)
    rule.judge(ending(step=10, done=9))
    rule.judge(ending(step=5, done=4))
    assert isinstance(rule.judge(ending(step=6, done=5)), GiveUp)


def test_a_failing_slot_is_given_up():
    """Two failures running of one slot, without progress, and the others go on alone; slots keep their first names."""
    rule = Restarts(5, 3)
    assert rule.judge(ending(rank=1)) == Again((0, 1, 2))
    assert rule.judge(ending(rank=1)) == Again((0, 1, 2))
    assert rule.judge(ending(rank=1)) == Again((0, 2), dropped=1)
    rule.judge(ending(rank=1))
    assert rule.judge(ending(rank=1)) == Again((0,), dropped=2)
    assert rule.judge(ending(rank=0)) == Again((0,))  # the last one stays
    assert isinstance(rule.judge(ending(rank=0)), GiveUp)


def test_the_first_slot_can_be_given_up_too():
    """Slot 0 is a slot like the others; a failure that is nobody's counts for no slot, the last one neither."""
    rule = Restarts(5, 2)
    assert [rule.judge(ending(rank=0)) for _ in range(3)][-1] == Again((1,), dropped=0)
    rule = Restarts(9, 2)
    for rank in (1, -1, 1):
        assert rule.judge(ending(rank=rank)) == Again((0, 1))


def test_no_slot_is_blamed_without_proof():
    """Ranks that only blame each other, exceptions, and failures that change places cost no slot."""
    rule = Restarts(9, 2)
    for rank in (0, 1, 0, 1, -1, -1, -1):
        assert rule.judge(ending(rank=rank)) == Again((0, 1))
    rule = Restarts(9, 2)
    for step in (5, 6, 5, 6):
        assert rule.judge(ending(rank=1, step=step, error="ValueError")) == Again((0, 1))


def test_the_same_exception_at_the_same_step_is_the_programs_own():
    """It is tried once more, not again and again; another step or another exception is another matter."""
    rule = Restarts(9, 2)
    assert isinstance(rule.judge(ending(error="ValueError")), Again)
    decision = rule.judge(ending(error="ValueError"))
    assert decision == GiveUp("No restart: ValueError has come twice in step 5.")
    rule = Restarts(9, 2)
    rule.judge(ending(step=0, done=0, error="OSError"))
    assert (
        rule.judge(ending(step=0, done=0, error="OSError")).reason
        == "No restart: OSError has come twice before the first step."
    )


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("is_final", "No restart: the same program would fail again."),
        ("is_unkillable", "No restart: a worker cannot be killed and might write beside its successor."),
    ],
)
def test_what_a_restart_cannot_help(why, words):
    """Wrong settings, and a worker that might write beside its successor, end the launch."""
    assert Restarts(9, 2).judge(ending(**{why: True})) == GiveUp(words)
