"""The schedule of faults: one number says it all."""

import pytest

from unisono.errors import ConfigError
from unisono.experiments.fault_schedule import KINDS, plan_faults

GOLDEN = [
    (38, "resize", 1, 1, 0.925),
    (58, "kill-all", 0, 1, 0.29),
    (64, "kill-worker", 0, 1, 0.886),
    (77, "kill-worker", 0, 1, 0.697),
]

GOLDEN_OF_SEVEN = [
    (6, "resize", 1, 3, 0.906),
    (22, "stop", 1, 3, 0.779),
    (26, "resize", 1, 7, 0.658),
    (28, "resize", 3, 3, 1.096),
    (38, "stop", 2, 3, 0.653),
    (51, "resize", 2, 1, 0.737),
    (54, "resize", 0, 2, 0.553),
    (64, "stop", 0, 2, 1.164),
]


def test_one_number_repeats_the_schedule():
    """The same seed gives the same faults, another one others."""
    plan = plan_faults(1, 50, steps=460, workers=4)
    assert plan == plan_faults(1, 50, steps=460, workers=4)
    assert plan != plan_faults(2, 50, steps=460, workers=4)


def test_golden_schedule():
    """The draws do not change with Python or numpy: a seed that someone has written down still works."""
    few = plan_faults(1, 4, steps=100, workers=2)
    many = plan_faults(3, 8, steps=100, workers=7, kinds=("stop", "resize"))
    for plan, golden in ((few, GOLDEN), (many, GOLDEN_OF_SEVEN)):
        found = [(fault.step, fault.kind, fault.rank, fault.workers, round(fault.hold_s, 6)) for fault in plan]
        assert found == golden
        assert [fault.number for fault in plan] == list(range(1, len(plan) + 1))


def test_a_run_can_be_full_of_faults():
    """As many faults as there is room for come at every step that has room after it."""
    assert [fault.step for fault in plan_faults(5, 8, steps=10, workers=1)] == list(range(1, 9))


def test_every_plan_can_be_played():
    """Ascending steps with room after the last, ranks that exist, sizes that change."""
    for seed in range(50):
        plan = plan_faults(seed, 30, steps=100, workers=4)
        steps = [fault.step for fault in plan]
        assert steps == sorted(set(steps))
        assert 1 <= steps[0] <= steps[-1] <= 80
        now = 4
        for fault in plan:
            assert 0 <= fault.rank < now
            assert (fault.workers != now) == (fault.kind == "resize")
            assert 1 <= fault.workers <= 4
            assert 0.2 <= fault.hold_s <= 1.2
            now = fault.workers
    assert {fault.kind for fault in plan_faults(0, 60, steps=100, workers=4)} == set(KINDS)


def test_only_wanted_kinds():
    """Kinds can be chosen; one worker cannot become fewer."""
    assert {fault.kind for fault in plan_faults(0, 20, steps=100, workers=2, kinds=("stop",))} == {"stop"}
    assert "resize" not in {fault.kind for fault in plan_faults(0, 50, steps=100, workers=1)}


def test_what_cannot_be_planned():
    """Unknown kinds, too many faults, nothing to draw from: said with the fix."""
    known = ", ".join(KINDS)
    for kinds, got in ((("flood", "stop", "fire"), "flood, fire"), ((), "none")):
        with pytest.raises(ConfigError) as caught:
            plan_faults(0, 1, steps=9, workers=1, kinds=kinds)
        assert str(caught.value) == f"expected kinds of faults out of {known}, got {got}."
    with pytest.raises(
        ConfigError, match=r"at most 8 faults for a run of 10 steps, got 9\. Hint: fewer --kills, or more"
    ):
        plan_faults(0, 9, steps=10, workers=1)
    with pytest.raises(ConfigError, match=r"^resize needs at least 2 workers, got 1\. Hint: -n 2, or other kinds of"):
        plan_faults(0, 1, steps=10, workers=1, kinds=("resize",))
