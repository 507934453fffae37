"""A rank dies within a step: the others finish it with the same bits, and nothing is done twice that could be seen."""

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ranks import once
from train.live_programs import MEETINGS, STEPS

PROGRAM = Path(__file__).with_name("live_trials.py")
NO_SAVES = {"checkpoint_every": 1000}
WHENS = ("before", "inside", "after")
TURNS = ((3, 2, 1), (1, 3, 2), (2, 1, 3))  # each rank dies first, second and last


def play(trials):
    """Run trials in a process that forks their ranks."""
    done = subprocess.run(
        [sys.executable, PROGRAM], input=json.dumps(trials), text=True, capture_output=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@once
def undisturbed(steps=STEPS):
    """Return what a run tells in which nobody dies, on one rank."""
    return play([[1, {}, {"steps": steps}]])[0]


def check(found, survivors, steps=STEPS):
    """The survivors have the bits of a run in which nobody died; the ledger has each step once."""
    expected = undisturbed(steps)
    assert found["errors"] == []
    assert sorted(found["told"]) == sorted(map(str, survivors))
    fingerprints = {told["fingerprint"] for told in found["told"].values()}
    assert fingerprints == {expected["told"]["0"]["fingerprint"]}
    assert found["ledger"] == expected["ledger"]
    for told in found["told"].values():
        assert [step for step, *_ in told["seen"]] == list(range(1, steps + 1))
        ranks, sizes = {(told["seen"][-1][2])}, {told["seen"][-1][3]}
        assert sizes == {len(survivors)}
        assert ranks < {*range(len(survivors))} or len(survivors) == 1


def test_two_ranks_die_one_after_the_other():
    """Three ranks, then two, then one: the loop sees every step once, ledger and weights are bit-equal."""
    kills = {"2": [[4, 1, "before"]], "1": [[7, 2, "inside"]]}
    expected, found = play([[1, {}, {}], [3, kills, NO_SAVES]])
    assert found["codes"] == {"2": -9, "1": -9, "0": 0}
    assert (found["ledger"], len(found["ledger"])) == (expected["ledger"], STEPS)
    assert found["told"]["0"]["fingerprint"] == expected["told"]["0"]["fingerprint"]
    sizes = [size for *_, size in found["told"]["0"]["seen"]]
    assert sizes == [3, 3, 3, 2, 2, 2, sizes[6], 1, 1, 1]  # the seventh may be sealed before it is known


@pytest.mark.slow
def test_every_rank_dies_at_every_meeting():
    """Before a meeting, inside and behind it; in worlds of four, of three and of two."""
    trials = []
    places = itertools.product(range(1, MEETINGS + 1), WHENS)
    for (meeting, when), turn in zip(places, itertools.cycle(TURNS)):
        kills = {str(rank): [[step, meeting, when]] for rank, step in zip(turn, (2, 5, 8), strict=True)}
        trials.append([4, kills, NO_SAVES])
    for trial, found in zip(trials, play(trials), strict=True):
        assert set(found["codes"].values()) == {0, -9}, (trial, found)
        check(found, [0])


@pytest.mark.slow
def test_two_deaths_within_one_recovery():
    """One dies at the first meeting of the new world, or in the step's second try: another epoch, the same bits."""
    first = {"2": [[4, 1, "before"]]}
    last = {"num_workers": 1, **NO_SAVES}  # the same with processes that have fetched batches ahead
    places = itertools.product((2, 3, 4), WHENS)
    trials = [[4, first | {"3": [[4, *place]]}, last if place[0] == 4 else NO_SAVES] for place in places]
    for found in play(trials):
        check(found, [0, 1])


@pytest.mark.slow
def test_rounded_gradients():
    """Rounding keeps nothing of a step's first try: a death at any of its meetings changes no bit."""
    rounded = {"compress": "int8", **NO_SAVES}
    kills = [{"2": [[4, meeting, "before"]], "1": [[7, meeting, "after"]]} for meeting in (1, 2, 3, 5)]
    alone, *others = play([[1, {}, rounded], *([3, places, rounded] for places in kills)])
    for found in others:
        assert (found["errors"], set(found["codes"].values())) == ([], {0, -9})
        assert found["ledger"] == alone["ledger"] != undisturbed()["ledger"]
        assert found["told"]["0"]["fingerprint"] == alone["told"]["0"]["fingerprint"]


@pytest.mark.slow
def test_random_kills():
    """Two of four ranks are killed at random instants; the run is long enough that all of these lie within it."""
    draw, steps = random.Random(7), 200
    shots = [[[rank, draw.uniform(0.0, 0.3)] for rank in draw.sample((1, 2, 3), 2)] for _ in range(3)]
    for dead, found in zip(shots, play([[4, {}, {"steps": steps, **NO_SAVES}, some] for some in shots]), strict=True):
        check(found, [rank for rank in range(4) if rank not in dict(dead)], steps)


@pytest.mark.slow
def test_what_is_begun_again_wrongly_is_caught():
    """Negative control: buffers not put back, a sum of the first try kept, other random numbers."""
    kills, names = {"2": [[4, 1, "before"]]}, ("buffers", "sums", "keys")
    for found in play([[3, kills, {"broken": broken, **NO_SAVES}] for broken in names]):
        assert found["said"], "nobody has died"
        assert found["errors"] or found["ledger"] != undisturbed()["ledger"]


@pytest.mark.slow
def test_what_cannot_be_lived_through():
    """The leader's death, an exception, and a death while the others save end the world, as without."""
    leader, error, saving = play(
        [
            [3, {"0": [[4, 1, "before"]]}, NO_SAVES],
            [3, {}, {"raises": [1, 4], **NO_SAVES}],
            [3, {"2": [[3, 2, "after"]]}, {"checkpoint_every": 3}],
        ]
    )
    assert leader["said"] == ["The other workers cannot go on without it: it was the leader."]
    assert (error["said"], error["told"]) == ([], {})
    assert saving["said"][-1].startswith("The other workers cannot go on without it: a rank waits outside of a step")
