"""Deaths that the others live through: planned by a seed, counted, and compared with a run in which nobody dies."""

import itertools
import os
from pathlib import Path

import pytest

from unisono.errors import ConfigError
from unisono.experiments.chaos.deaths import AIMS, Died, plan_deaths, plan_growing, spread_of
from unisono.experiments.chaos.dying import Places
from unisono.experiments.chaos.live import LiveReport, chaos_live

HOME = Path(__file__).parent


def plans(seed=0, count=40, steps=30, workers=4):
    return [*plan_deaths(seed, count, steps=steps, workers=workers)]


def test_the_seed_decides():
    """The same deaths for the same seed; as many as asked for; no run loses all its workers, or one of them twice."""
    assert plans() == plans() != plans(seed=1)
    assert sum(map(len, plans())) == 40
    for deaths in plans():
        steps, ranks = [death.step for death in deaths], [death.rank for death in deaths]
        assert 1 <= len(deaths) <= 3
        assert steps == sorted({*steps}) and steps[0] > 1 and steps[-1] <= 24
        assert len({*ranks}) == len(ranks)
    assert {death.aim for deaths in plans() for death in deaths} == {*AIMS}
    assert {len(deaths) for deaths in plans()} == {1, 2, 3}


@pytest.mark.parametrize(("steps", "workers"), [(30, 1), (4, 4)])
def test_too_little_to_lose(steps, workers):
    """One worker, or a run that is too short, is refused with what is needed."""
    with pytest.raises(ConfigError, match="expected at least 2 workers and"):
        plans(steps=steps, workers=workers)


def test_the_table():
    """Each phase that was hit, with the median and the longest gap."""
    found = [("reduce", 0.1), ("data", 0.3), ("reduce", 0.2), ("reduce", None)]
    deaths = [Died(rank=1, step=4, phase=phase, left=2, gap_s=gap) for phase, gap in found]
    facts = {"equal": True, "fault_seed": 0, "reference": "", "runs": 2, "replayed": 0, "again": 1, "faults": []}
    table = LiveReport(deaths=deaths, **facts).table()
    assert table == [("data", 1, 0.3, 0.3), ("reduce", 3, pytest.approx(0.15), 0.2)]


def test_the_seed_decides_who_dies_in_a_run_that_grows_back():
    """Members, two within one recovery where three are there, and joiners; the same for the same seed."""

    def plan(workers, number=3):
        return [*itertools.islice(plan_growing(0, number, workers), 200)]

    assert plan(3) == plan(3) != plan(3, number=4)
    assert {death.kind for death in plan(2)} == {"member", "guest"}
    assert {death.kind for death in plan(3)} == {"member", "second", "guest"}
    assert {death.aim for death in plan(3) if death.kind == "member"} == {*AIMS}
    assert {death.rank for death in plan(3)} == {0, 1, 2}


def test_the_spread_of_gaps():
    """Median and 99th percentile beyond what two steps take; nothing of nothing."""
    assert spread_of([]) is None
    assert spread_of([0.1 * number for number in range(200)], 1.0) == (pytest.approx(8.95), pytest.approx(18.8))


def test_places_of_a_step():
    """Meetings are counted from each step's beginning; a place that is not there kills nobody."""
    died, now = [], [1]
    places = Places([(2, 2, "behind"), (3, 1, "before")], lambda: now[0], lambda: died.append(now[0]))
    for now[0] in (1, 1, 2, 2, 2, 3):
        places.meets()
        places.at("inside")
        places.at("behind")
        died.append("met")
    assert died == ["met", "met", "met", 2, "met", "met", 3, "met"]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "least"), [({"grow": True}, 3), ({"every_meeting": True}, 12)])
def test_other_ways_to_die(how, least):
    """With others that join; and each worker at each of the two meetings of a step: equal bits, no step done again."""
    found = chaos_live(str(HOME / "live_job.py"), env=os.environ, workers=2, kills=3, fault_seed=4, replicas=6, **how)
    assert (found.equal, found.replayed, found.faults) == (True, 0, [])
    assert len(found.deaths) >= least
    assert ("grow" in how) == (found.joins > 0)


@pytest.mark.slow
@pytest.mark.parametrize(("job", "equal"), [("live_job.py", True), ("live_job_of_the_world.py", False)])
def test_deaths_change_nothing(job, equal):
    """Two of three workers die: equal bits, no step done again; negative control: a loss that looks at the world."""
    said = []
    found = chaos_live(str(HOME / job), env=os.environ, workers=3, kills=2, fault_seed=4, replicas=6, tell=said.append)
    assert [died.left for died in found.deaths] in ([2, 1], [2, 2])
    assert (found.equal, found.replayed, bool(found.faults)) == (equal, 0, not equal)
    assert said[0].endswith("on 3 workers, undisturbed ...")
