"""A rank dies within a step: the others finish it with the same bits, and nothing is done twice that could be seen."""

import itertools
import os
import random
from pathlib import Path

import pytest

from answers import Answers
from ranks import once
from train.live_programs import MEETINGS, STEPS

NO_SAVES = {"checkpoint_every": 1000}
WHENS = ("before", "inside", "after")
pytestmark = pytest.mark.timeout(1300)  # many worlds of processes, seconds each on a loaded machine
TURNS = ((3, 2, 1), (1, 3, 2), (2, 1, 3))  # each rank dies first, second and last


answers = Answers(Path(__file__).parents[1] / "live_trials.py", timeout_s=1200)


def play(trials):
    """Let ranks live and die as the trials say; return what became of each trial."""
    return answers.ask(trials)


@once
def undisturbed(steps=STEPS):
    """Return what a run tells in which nobody dies, on one rank."""
    return play([[1, {}, {"steps": steps}]])[0]


def check(found, survivors, steps=STEPS, last=None):
    """The survivors have the bits of a run in which nobody died; the ledger has each step once.

    `last` is the number of ranks in the last step where it is not that of the survivors.
    """
    expected = undisturbed(steps)
    assert found["errors"] == []
    assert sorted(found["told"]) == sorted(map(str, survivors))
    fingerprints = {told["fingerprint"] for told in found["told"].values()}
    assert fingerprints == {expected["told"]["0"]["fingerprint"]}
    assert found["ledger"] == expected["ledger"]
    for told in found["told"].values():
        assert [step for step, *_ in told["seen"]] == list(range(1, steps + 1))
        rank, size = told["seen"][-1][2:4]
        assert size == (last or len(survivors))
        assert rank in range(size)


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
def test_a_loss_over_the_whole_batch():
    """A death in the first pass, between the passes and behind the second, in the first step too: the same bits."""
    whole = {"whole": True, **NO_SAVES}
    kills = [{"2": [[1, meeting, "before"]]} for meeting in (2, 3, 5)]
    kills += [{"2": [[4, meeting, "before"]], "1": [[7, meeting, "after"]]} for meeting in (1, 3)]
    alone, *others = play([[1, {}, whole], *([3, places, whole] for places in kills)])
    for found in others:
        assert (found["errors"], set(found["codes"].values())) == ([], {0, -9})
        assert found["ledger"] == alone["ledger"] != undisturbed()["ledger"]
        assert found["told"]["0"]["fingerprint"] == alone["told"]["0"]["fingerprint"]


@pytest.mark.slow
def test_random_kills():
    """Two of four ranks are killed at random instants; the last step waits for them."""
    draw, steps = random.Random(7), 200
    shots = [[[rank, draw.uniform(0.0, 0.3)] for rank in draw.sample((1, 2, 3), 2)] for _ in range(3)]
    settings = {"steps": steps, "left": 2, **NO_SAVES}
    for dead, found in zip(shots, play([[4, {}, settings, some] for some in shots]), strict=True):
        assert list(found["codes"].values()).count(-9) == 2, found
        check(found, [rank for rank in range(4) if rank not in dict(dead)], steps)


@pytest.mark.slow
def test_what_is_begun_again_wrongly_is_caught():
    """Negative control: buffers not put back, a sum of the first try kept, other random numbers, an optimizer that has
    stepped on one survivor, a buffer handed out that still is a gradient.
    """
    kills, names = {"2": [[4, 1, "before"]]}, ("buffers", "sums", "keys", "update", "pool")
    for found in play([[3, kills, {"broken": broken, **NO_SAVES}] for broken in names]):
        assert found["said"], "nobody has died"
        assert found["errors"] or found["ledger"] != undisturbed()["ledger"]


FULL = {"evaluates": 3, "checkpoint_every": 2}
SHARED = FULL | {"shares": True}


@once
def whole():
    """Return what a run of one rank tells that evaluates and saves."""
    return play([[1, {}, FULL]])[0]


def check_whole(found, expected, survivors=None):
    """Ledger, result, scores and the newest checkpoint are those of a run in which nobody died."""
    assert found["errors"] == []
    assert found["ledger"] == expected["ledger"]
    assert found["lines"] == expected["lines"]
    assert found["newest"] == expected["newest"] == [STEPS, [], []]
    assert found["result"]["world_size"] >= len(found["told"])  # one may die when all is written
    assert found["result"] | {"world_size": 1} == expected["result"]
    for told in found["told"].values():
        assert told["fingerprint"] == expected["told"]["0"]["fingerprint"]
        assert told.get("scores") == expected["told"]["0"].get("scores")
    if survivors is not None:
        assert sorted(found["told"]) == sorted(map(str, survivors))


def test_the_leader_dies():
    """Once within a step and once in an evaluation: the next rank goes on with ledger, checkpoints and result."""
    kills = {"0": [[4, 1, "before"]], "1": [[6, "predict", "after"]]}
    check_whole(play([[3, kills, SHARED]])[0], whole(), [2])


@pytest.mark.slow
def test_deaths_at_every_meeting_of_a_run():
    """In evaluations, saves and at the end, of any rank; three of four in each run, down to one."""
    turns = [*itertools.permutations(range(4), 3)]
    trials = []
    for number, when in itertools.product(range(4), WHENS):
        turn = turns[(7 * len(trials)) % 24]
        places = ([3, number + 1, when], [6, 2 * number + 2, when], [10, 4 * number + 3, when])
        trials.append([4, {str(rank): [place] for rank, place in zip(turn, places, strict=True)}, SHARED])
    for trial, found in zip(trials, play(trials), strict=True):
        (left,) = {*range(4)} - {*map(int, trial[1])}
        check_whole(found, whole(), [left])


@pytest.mark.slow
@pytest.mark.parametrize("stops", [False, True])
def test_deaths_outside_of_meetings(stops):
    """Of the leader in the ledger, a checkpoint and the result, of another rank in its share.

    One that is stopped there, killed and told to go on changes nothing: it is dead before the others are told.
    """
    places = [(6, "ledger", "before"), (6, "commit", "before"), (6, "rename", "before"), (6, "rename", "after")]
    places += [(6, "settle", "before"), (10, "result", "before"), (10, "result", "after")]
    # A thread may write a little later than the step that begins it.
    kills = [{"0": [place, (place[0] + 1, *place[1:])]} for place in places]
    kills += [{"2": [(6, name, "before"), (7, name, "before")]} for name in ("share", "receipt")]
    for found in play([[3, each, SHARED | {"stops": stops}] for each in kills]):
        check_whole(found, whole())


@pytest.mark.slow
def test_one_that_is_excluded_alive_is_caught():
    """Negative control: a leader that is only stopped when the others go on still holds the directory; none writes."""
    stopped = {"0": [[6, "ledger", "before"], [7, "ledger", "before"]]}
    (found,) = play([[3, stopped, SHARED | {"stops": True, "wakes": True}]])
    assert found["said"]
    assert found["ledger"] == whole()["ledger"][: len(found["ledger"])] != whole()["ledger"]
    assert any("is in use by process" in error for error in found["errors"])


@pytest.mark.slow
def test_what_is_taken_over_wrongly_is_caught():
    """Negative control: lines that only the leader has, and an evaluation without the dead rank's share."""
    kills = {"lines": {"0": [[4, 1, "before"]]}, "shares": {"1": [[6, "predict", "before"]]}}
    lines, shares = play([[3, places, FULL | {"broken": name}] for name, places in kills.items()])
    assert len(lines["ledger"]) < STEPS and lines["errors"] == []
    assert {str(told["scores"]) for told in shares["told"].values()} != {str(whole()["told"]["0"]["scores"])}


@pytest.mark.slow
def test_what_a_trainer_writes():
    """``metrics.jsonl`` and ``detail.jsonl`` are whole; the new leader's callbacks begin, and all hear of the world."""
    fits = {"fits": True, "checkpoint_every": 2, "detail": True}
    kills = [
        {"0": [[4, 1, "before"]], "1": [[6, 4, "after"]]},
        {"0": [[4, 4, "after"]]},
        {"0": [[6, "predict", "before"]], "1": [[9, "predict", "after"]]},
        {"1": [[6, 5, "inside"]]},
    ]
    alone, first, *others = play([[1, {}, fits], *([3, each, fits] for each in kills)])
    for found in (first, *others):
        check_whole(found, alone)
        assert all(told["changes"] for told in found["told"].values())
    assert first["told"]["2"]["changes"] == [[4, 3, 2], [6, 2, 1]]
    assert first["told"]["2"]["heard"][:5] == ["setup", "start", "2 to 1", 6, 8]
    assert others[1]["told"]["2"]["heard"][:5] == ["setup", "start", "2 to 1", "scores 9", 9]  # a leader dies in it


@pytest.mark.slow
def test_what_cannot_be_lived_through():
    """An exception, and a death while the others wait in code of their own, end the world, as without."""
    error, own = play([[3, {}, {"raises": [1, 4], **NO_SAVES}], [3, {"2": [[4, 3, "before"]]}, {"meets": True}]])
    assert (error["said"], error["told"]) == ([], {})
    assert own["said"][-1].startswith("The other workers cannot go on without it: a rank waits for the others in code")
    assert set(own["codes"].values()) & {-9, 1}


def test_others_join_in_place_of_those_that_have_died():
    """Also for a leader; a joiner sees the steps from its own on, and bits and ledger are those of a calm run."""
    kills = {"1": [[3, 1, "inside"]], "0": [[7, 1, "inside"]]}
    expected, found = play([[1, {}, {}], [3, kills, NO_SAVES | {"awaits": [5, 8]}, [], 0, 3]])
    assert found["errors"] == []
    assert found["codes"] == {"1": -9, "0": -9, "2": 0, "3": 0, "4": 0}
    assert found["ledger"] == expected["ledger"]
    assert {told["fingerprint"] for told in found["told"].values()} == {expected["told"]["0"]["fingerprint"]}
    first = {rank: told["seen"][0][0] for rank, told in found["told"].items()}
    assert (first["2"], sorted(first)) == (1, ["2", "3", "4"])
    assert 4 <= first["3"] <= 6 and 8 <= first["4"] <= 9  # it may be ready before it is waited for
    assert found["counts"] == {"world_size": 3, "deaths": 2, "joins": 2}


@pytest.mark.slow
def test_a_death_while_one_joins():
    """The joiner, the leader that gives, another one: at every meeting of it; a spare or a new one joins then."""
    turns = itertools.cycle(WHENS)
    joiner = [{"1": [[3, 1, "inside"]], "3": [[0, meeting, next(turns)]]} for meeting in range(1, 6)]
    places = [[3, meeting, next(turns)] for meeting in range(6, 18)]  # of a step that is begun again, and the joining
    others = [{"1": [[3, 1, "inside"]], rank: [place]} for place, rank in zip(places, itertools.cycle("02"))]
    # The third step's second try lasts until the spare is ready: it joins there, and no planned kill comes too late.
    trials = [[3, kills, NO_SAVES | {"awaits": [3, 5]}, [], 1, 3] for kills in [*joiner, *others]]
    for trial, found in zip(trials, play(trials), strict=True):
        assert found["errors"] == [], trial
        assert {found["codes"][rank] for rank in trial[1]} == {-9}, (trial, found)
        assert found["ledger"] == undisturbed()["ledger"], (trial, found["said"])
        assert {told["fingerprint"] for told in found["told"].values()} == {undisturbed()["told"]["0"]["fingerprint"]}


@pytest.mark.slow
def test_one_joins_what_is_around_the_steps():
    """A trainer with callbacks, evaluations, checkpoints that all ranks share: everything as in a calm run."""
    kills = {"1": [[3, 1, "inside"]], "0": [[7, 1, "inside"]]}
    fits, evaluates = {"fits": True, "checkpoint_every": 2}, {"evaluates": 3, "shares": True, "checkpoint_every": 2}
    for settings in (fits, evaluates):
        calm, found = play([[3, {}, settings], [3, kills, settings | {"awaits": [5]}, [], 1, 0]])
        assert found["errors"] == []
        assert (found["ledger"], found["newest"]) == (calm["ledger"], calm["newest"])
        assert {name: found["result"][name] for name in ("fingerprint", "metrics", "steps")} == {
            name: calm["result"][name] for name in ("fingerprint", "metrics", "steps")
        }
        assert found["lines"] == calm["lines"]
        assert 4 <= found["told"]["3"]["seen"][0][0] <= 6


def test_the_world_shrinks_and_grows_as_is_asked():
    """Three ranks, one, three: those that are released end with code 0, and bits and ledger are those of a calm run."""
    (found,) = play([[3, {}, NO_SAVES | {"asks": [[3, 1], [6, 3]], "awaits": [7]}]])
    assert (found["errors"], {*found["codes"].values()}) == ([], {0})
    assert found["ledger"] == undisturbed()["ledger"]
    assert sorted(found["told"]) == ["0", "3", "4"]
    assert {told["fingerprint"] for told in found["told"].values()} == {undisturbed()["told"]["0"]["fingerprint"]}
    sizes = [size for *_, size in found["told"]["0"]["seen"]]
    assert sizes == [3, 3, 3, 1, 1, 1, sizes[6], 3, 3, 3]  # they join one after the other, or both at once
    smaller = {"workers": 1, "before": 3, "left": [1, 2], "joined": []}
    assert found["answers"] == [smaller, {"workers": 3, "before": 1, "left": [], "joined": [3, 4]}]


@pytest.mark.slow
def test_deaths_while_the_world_is_resized():
    """At each meeting of the step in which it is asked for, and of the next one; of who stays, and of who leaves."""
    places = [(step, meeting, when) for step, when in ((3, "before"), (4, "after")) for meeting in (1, 2, 3)]
    trials = [[4, {rank: [place]}, FULL | {"asks": [[3, 2]]}] for place, rank in zip(places, "021010", strict=True)]
    trials += [[2, {"0": [place]}, NO_SAVES | {"asks": [[3, 3]]}, [], 0, 3] for place in places[:5]]
    for trial, found in zip(trials, play(trials), strict=True):
        expected = whole() if trial[0] == 4 else undisturbed()
        assert found["errors"] == [], (trial, found["said"])
        assert {*found["codes"].values()} == {0, -9}, (trial, found)
        assert found["ledger"] == expected["ledger"], (trial, found["said"])
        assert {told["fingerprint"] for told in found["told"].values()} == {expected["told"]["0"]["fingerprint"]}
        if trial[0] == 4:
            assert found["answers"][-1]["workers"] == 2, (trial, found)


@pytest.mark.slow
def test_replicas_that_nobody_has_taken_over_are_found():
    """Negative control: those that stay keep the replicas that they had."""
    (found,) = play([[3, {}, NO_SAVES | {"asks": [[3, 2]], "broken": "places"}]])
    assert found["answers"]
    assert found["errors"] or found["ledger"] != undisturbed()["ledger"]


def test_a_joiner_with_a_stale_state_is_found():
    """Negative control: what the weights are is compared in its first step."""
    settings = NO_SAVES | {"awaits": [5], "stale": True}
    (found,) = play([[3, {"1": [[3, 1, "inside"]]}, settings, [], 1, 0]])
    assert any("RankDivergence" in error for error in found["errors"])


def test_a_joiner_that_computes_other_bits_is_refused():
    """By the name of its host, before it computes for the others; they go on without it, and lose no bit."""
    settings = NO_SAVES | {"awaits": [3], "unlike": True}  # where one dies: later nobody comes any more
    (found,) = play([[3, {"1": [[3, 1, "inside"]]}, settings, [], 1, 0]])
    said = [text for text in found["said"] if "cannot join" in text]
    assert len(said) == 1, found
    assert said[0].startswith(f"rank 3 cannot join: its host {os.uname().nodename} is not what that of the others is")
    assert "computed bits of float32: " in said[0]
    check(found, [0, 2])


GAN = {"case": "gan"} | NO_SAVES
GAN_MEETINGS = 2 * MEETINGS  # of a batch: those of D's update, those of G's


@once
def calm_gan():
    """Return what a run of one rank tells that has two optimizers."""
    return play([[1, {}, GAN]])[0]


def check_gan(found):
    """Everything that is kept is that of a run in which nobody died, each update's bits too, which the head covers."""
    expected = calm_gan()
    assert (found["errors"], {*found["codes"].values()} - {0, -9}) == ([], set()), found["said"]
    assert (found["ledger"], found["newest"][1:]) == (expected["ledger"], [[], []])
    assert found["result"] | {"world_size": 1} == expected["result"]
    assert {told["fingerprint"] for told in found["told"].values()} == {expected["told"]["0"]["fingerprint"]}


@pytest.mark.slow
def test_deaths_in_both_of_two_optimizers_updates():
    """In the first one's exchange, between the two, in the second's, of the leader too: others join, or none."""
    kills = {"1": [[3, 1, "inside"]], "0": [[6, "apply", "after"]]}
    grown, shrunk = play(
        [
            [3, kills, GAN | {"awaits": [4, 8]}, [], 0, 3],
            [3, {"2": [[3, 3, "inside"]], "0": [[5, "apply", "after"]]}, GAN],
        ]
    )
    check_gan(grown)
    check_gan(shrunk)
    assert grown["counts"] == {"world_size": 3, "deaths": 2, "joins": 2}
    assert (sorted(shrunk["told"]), shrunk["counts"]["deaths"]) == (["1"], 2)


@pytest.mark.slow
def test_deaths_in_every_place_of_two_updates():
    """At each meeting of both, and around each update; of two in one batch; in an evaluation between the updates."""
    moments = [*itertools.product(range(1, GAN_MEETINGS + 1), WHENS), ("apply", "before"), ("apply", "after")]
    trials = []
    for (place, when), turn in zip(moments, itertools.cycle(TURNS)):
        trials.append([3, {str(turn[0] - 1): [[2, place, when]], str(turn[1] - 1): [[5, place, when]]}, GAN])
    fetching = GAN | {"num_workers": 1}
    trials.append([3, {"1": [[4, 1, "inside"]], "0": [[4, 5, "inside"]]}, fetching])
    trials.append([3, {"2": [[4, "apply", "after"]], "0": [[4, 4, "after"]]}, fetching])
    for trial, found in zip(trials, play(trials), strict=True):
        assert found["counts"] == {"world_size": 1, "deaths": 2, "joins": 0}, trial
        check_gan(found)
    places = [(3, "predict", "after"), *((3, meeting, "inside") for meeting in range(1, 9))]
    trials = [[3, {"0": [place]}, GAN | {"evaluates": 3}] for place in places]
    for found in play(trials):
        check_gan(found)
        assert found["counts"]["deaths"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("case", ["wgan", "teacher", "actor-critic"])
def test_deaths_in_other_kinds_of_updates(case):
    """Three updates of one optimizer in a batch, an average that the loop moves itself, a trunk that two models share:
    two workers, one, two.
    """
    settings = NO_SAVES | {"case": case, "detail": True}
    kills = [{"1": [[3, meeting, "inside"]], "0": [[6, "apply", "after"]]} for meeting in (1, 2)]
    alone, *others = play([[1, {}, settings], *([2, each, settings | {"awaits": [4, 8]}, [], 0, 3] for each in kills)])
    for found in others:
        assert (found["errors"], found["ledger"]) == ([], alone["ledger"])
        assert found["lines"]["detail.jsonl"] == alone["lines"]["detail.jsonl"]
        assert found["result"] | {"world_size": 1} == alone["result"]
        assert found["counts"] == {"world_size": 2, "deaths": 2, "joins": 2}


@pytest.mark.slow
def test_a_death_while_one_joins_two_optimizers():
    """The joiner, or the leader that gives, at each meeting of it: another one joins, with the state of both."""
    turns = itertools.cycle(WHENS)
    joiner = [{"1": [[3, 3, "inside"]], "3": [[0, meeting, next(turns)]]} for meeting in range(1, 6)]
    leader = [{"1": [[3, 1, "inside"]], "0": [[3, meeting, next(turns)]]} for meeting in range(6, 18)]
    trials = [[3, kills, GAN | {"awaits": [3, 5]}, [], 1, 3] for kills in [*joiner, *leader]]
    for trial, found in zip(trials, play(trials), strict=True):
        assert {found["codes"][rank] for rank in trial[1]} == {-9}, (trial, found)
        check_gan(found)


@pytest.mark.slow
def test_updates_that_are_begun_again_wrongly_are_caught():
    """Negative control: data not kept for the second update, buffers not put back, other random numbers."""
    for meeting, names in ((1, ("kept", "buffers", "keys")), (3, ("buffers", "keys"))):
        trials = [[3, {"2": [[4, meeting, "before"]]}, GAN | {"broken": name}] for name in names]
        for trial, found in zip(trials, play(trials), strict=True):
            assert found["said"], "nobody has died"
            assert found["errors"] or found["ledger"] != calm_gan()["ledger"], trial
