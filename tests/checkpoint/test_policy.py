"""What is kept and who writes what: plain decisions."""

import itertools
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unisono.checkpoint.policy import BestSoFar, CheckpointPolicy, KeptCheckpoint, choose_kept, plan_shards, stem_of
from unisono.errors import ConfigError


def others(*valid):
    return [KeptCheckpoint(step=step, is_valid=is_valid, metric=metric) for step, is_valid, metric in valid]


SPARSE = "a whole number of steps from 1 to 1,000,000,000,000, or 'doubling'"
NEW = KeptCheckpoint(step=50, is_valid=True, metric=0.5)


@pytest.mark.parametrize(
    ("policy", "listed", "kept"),
    [
        (CheckpointPolicy(keep=1), [(40, True, 0.9), (30, True, 0.1)], [False, False]),
        (CheckpointPolicy(keep=2), [(40, True, None), (30, True, None)], [True, False]),
        (CheckpointPolicy(keep=2), [(40, False, None), (30, True, None)], [False, True]),
        (CheckpointPolicy(keep=2), [(60, False, None), (40, True, None)], [True, True]),
        (CheckpointPolicy(keep=2), [(50, False, None), (40, True, None)], [False, True]),
        (CheckpointPolicy(keep=1, best="a"), [(40, True, 0.4), (30, True, 0.9)], [False, True]),
        (CheckpointPolicy(keep=1, best="a"), [(40, True, 0.5), (30, True, 0.4)], [False, False]),
        (CheckpointPolicy(keep=1, best="a", best_mode="min"), [(40, True, 0.4), (30, True, 0.4)], [True, False]),
        (CheckpointPolicy(keep=1, best="a"), [(40, False, 0.9), (30, True, 0.6)], [False, True]),
        (CheckpointPolicy(keep=1, best="a"), [(40, True, None)], [False]),
        (CheckpointPolicy(keep=2, best="a"), [(40, True, 0.9), (30, True, 0.8)], [True, False]),
        (CheckpointPolicy(keep=1, best="a"), [(40, True, 0.6), (30, True, 0.9), (20, True, 0.7)], [False, True, False]),
        (CheckpointPolicy(), [], []),
    ],
)
def test_what_is_kept(policy, listed, kept):
    """The newest valid ones and the best stay; damaged ones take no place and go once the run has passed them."""
    assert choose_kept(others(*listed), NEW, policy) == kept


def run_with(policy, steps, num_bytes=100, every=7):
    """Return the steps whose checkpoints are left after a run, newest first."""
    left = []
    for step in range(1, steps + 1):
        if step % every == 0 or policy.sparse_place(step) is not None:
            new, listed = KeptCheckpoint(step=step, is_valid=True), others(*((s, True, None) for s in left))
            stays = choose_kept(listed, new, policy, num_bytes=num_bytes)
            left = [step, *(s for s, is_kept in zip(left, stays, strict=True) if is_kept)]
    return left


def test_those_that_stay_for_good():
    """Every so many steps, or at each doubling; beside the newest."""
    assert run_with(CheckpointPolicy(keep=1, keep_sparse=10), 35) == [35, 30, 20, 10]
    assert run_with(CheckpointPolicy(keep=2, keep_sparse="doubling"), 36) == [35, 32, 16, 8, 4, 2, 1]
    assert run_with(CheckpointPolicy(keep=2), 36) == [35, 28]


@pytest.mark.parametrize("room", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("steps", [4, 23, 64, 201])
def test_any_step_is_near_one_that_stays(room, steps):
    """Within the room given, and no step is further away than is promised."""
    policy = CheckpointPolicy(keep=1, keep_sparse=3, keep_sparse_bytes=room * 100 + 99)
    left = run_with(policy, steps)
    assert len([step for step in left[1:] if policy.sparse_place(step) is not None]) <= room
    ends = sorted({0, *left, steps})
    assert max(b - a for a, b in itertools.pairwise(ends)) <= max(3, 2 * steps / room)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"keep": 0}, "expected keep as a whole number of checkpoints from 1 to 1,000,000, got 0."),
        ({"keep_sparse": 0}, f"expected keep_sparse as {SPARSE}, got 0."),
        ({"keep_sparse": "x"}, f"expected keep_sparse as {SPARSE}, got 'x'."),
        (
            {"keep_sparse_bytes": 9},
            "expected keep_sparse beside keep_sparse_bytes, got None. Hint: keep_sparse=100.",
        ),
        ({"best_mode": "most"}, "expected best_mode as one of max, min, got 'most'."),
        ({"when_busy": "x"}, "expected when_busy as one of wait, skip, got 'x'."),
    ],
)
def test_policies_out_of_range(settings, said):
    """A policy out of range is refused with what is known; the least one is not."""
    with pytest.raises(ConfigError) as caught:
        CheckpointPolicy(**settings)
    assert str(caught.value) == said
    assert CheckpointPolicy(keep=1, best_mode="min", when_busy="skip").keep == 1


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # other work may fill the machine
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=4), st.dictionaries(st.text(max_size=4), st.integers(0, 999), max_size=9)
    ),
    st.integers(1, 9),
)
def test_every_tensor_is_written_once(sizes, num_writers):
    """Whatever the state, its tensors are in one share each, of a file of their own stem; the shares are even."""
    sizes = {stem.replace(".", "").replace("-", "") or "x": part for stem, part in sizes.items()}
    shares = plan_shards(sizes, num_writers)
    assert len(shares) == num_writers
    written = [(stem_of(file), name) for share in shares for file, names in share.items() for name in names]
    assert sorted(written) == sorted((stem, name) for stem, part in sizes.items() for name in part)
    assert {stem_of(file) for share in shares for file in share} == set(sizes)
    loads = [sum(sizes[stem_of(file)][name] for file, names in share.items() for name in names) for share in shares]
    largest = max((size for part in sizes.values() for size in part.values()), default=0)
    assert max(loads) - min(loads) <= largest
    files = [file for share in shares for file in share]
    assert len(files) == len(set(files))


def test_names_of_files():
    """One writer needs no numbers; more have them, from 1."""
    assert plan_shards({"model": {"a": 1}}, 1) == [{"model.safetensors": ["a"]}]
    assert plan_shards({"model": {"a": 1, "b": 2}}, 2) == [
        {"model-00001-of-00002.safetensors": ["b"]},
        {"model-00002-of-00002.safetensors": ["a"]},
    ]
    assert plan_shards({"b": {"x": 1}, "a": {"y": 1}}, 2) == [  # equal sizes in the order of their names
        {"a-00001-of-00002.safetensors": ["y"]},
        {"b-00002-of-00002.safetensors": ["x"]},
    ]
    assert plan_shards({"none": {}}, 1) == [{"none.safetensors": []}]
    assert plan_shards({"none": {}}, 2) == [{"none-00001-of-00002.safetensors": []}, {}]
    for stem in ("model", "my-model", "best-of-three"):
        for sizes in ({"a": 1}, {"a": 1, "b": 2}):
            assert {stem_of(file) for share in plan_shards({stem: sizes}, len(sizes)) for file in share} == {stem}
    assert stem_of("model.safetensors") == stem_of("model-00002-of-00004.safetensors") == "model"


def test_the_best_so_far():
    """Larger or smaller than all before; not NaN, an equal value, or another metric."""
    best, least = BestSoFar(CheckpointPolicy(best="a")), BestSoFar(CheckpointPolicy(best="a", best_mode="min"))
    values = [0.5, 0.4, math.nan, 0.5, 0.6]
    assert [best.is_better({"a": value}) for value in values] == [True, False, False, False, True]
    assert [least.is_better({"a": value}) for value in values] == [True, True, False, False, False]
    assert not any(each.is_better({"b": 0.0}) for each in (best, least, BestSoFar(None), BestSoFar(CheckpointPolicy())))
