"""A second computation on another rank finds flipped bits, names the rank, and changes nothing of a clean step."""

import pytest

from forks import run_forked
from ranks import run_threads
from strategies.witness_programs import clean, inject, summary
from unisono.strategies.witness import witness as witnesses
from unisono.strategies.witness.choice import Watched


@pytest.mark.parametrize("size", [2, 3, 4])
def test_flipped_bits_are_found_and_the_rank_is_named(size):
    """Each flip that changes a watched leaf is noticed, no other is; with three ranks and more the right one is named.

    With two both are. As many are noticed as the rate says, within four standard deviations.
    """
    found = summary(run_threads(inject, size, 60, 4, 0.8), size)
    assert found["noticed"] >= 5
    assert found["blamed_right"] == found["noticed"]
    assert abs(found["noticed"] - found["expected"]) <= 4 * found["spread"]


def test_the_same_rank_misses_what_persists():
    """Control: a rank that computes a replica twice itself gets the same wrong bits each time."""
    found = summary(run_threads(inject, 3, 40, 4, 1.0, 5), 3)
    assert found["missed_by_the_same_rank"] == found["persistent"] > 5


def test_a_witness_that_is_the_owner_notices_nothing(monkeypatch):
    """Control: where the choice gives a replica to its own rank again, no fault is noticed."""
    monkeypatch.setattr(witnesses, "choose", lambda *_: Watched(0, 0, 0))
    told = run_threads(inject, 3, 20, 4, 1.0)
    assert not any(trial[-2 if len(trial) > 2 else 1] for rank in told for trial in rank)


@pytest.mark.parametrize("size", [2, 3])
def test_a_clean_step_is_as_without(size):
    """No false alarm, with dropout and BatchNorm; the sum of the last step has the bits of a run without a witness."""
    plain = run_threads(clean, 1, 30, 4, 0.0)[0]
    for alarms, checksum, checked in run_threads(clean, size, 30, 4, 1.0):
        assert (alarms, checksum, checked) == (0, plain[1], 30)


def test_other_random_numbers_are_a_false_alarm(monkeypatch):
    """Control: a witness whose generators are not those of the replica's first computation blames who is right."""
    monkeypatch.setattr(witnesses, "key_generators", lambda *_: None)
    assert all(alarms for alarms, *_ in run_threads(clean, 3, 10, 4, 1.0))


@pytest.mark.slow
def test_on_processes():
    """The same on processes that share memory."""
    found = summary(run_forked(inject, 3, 60, 4, 1.0), 3)
    assert found["blamed_right"] == found["noticed"] >= 10
