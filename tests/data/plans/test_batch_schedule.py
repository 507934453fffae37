"""How epochs are cut into steps of a size that changes: as if cut one after another."""

import random

import numpy as np
import pytest

from unisono.data.plans.batch_schedule import LAST, UNITS, BatchSchedule, Cuts, schedule_of
from unisono.data.sampler import ExactSampler
from unisono.errors import ConfigError, DataError


def walked(num_samples, schedule, last, steps):
    """Return epoch, start and stop of each step, from the first on."""
    found, epoch, place = [], 0, 0
    for step in range(1, steps + 1):
        size, following = schedule.size_of(step, epoch), schedule.size_of(step + 1, epoch)
        stop = min(place + size, num_samples)
        ends = stop == num_samples or (last != "short" and num_samples - stop < max(size, following))
        found.append((epoch, place, num_samples if ends and last == "join" else stop))
        epoch, place = (epoch + 1, 0) if ends else (epoch, stop)
    return found


def drawn(seed):
    """Return some numbers to try."""
    chance = random.Random(seed)
    num_samples, unit, last = chance.randint(1, 60), chance.choice(UNITS), chance.choice(LAST)
    largest = num_samples if last == "drop" else 70
    starts = [0, *(chance.randint(0, 40 if unit == "steps" else 6) for _ in range(chance.randint(0, 3)))]
    return num_samples, BatchSchedule({start: chance.randint(1, largest) for start in starts}, unit=unit), last


def test_any_step_is_known_from_its_number():
    """Epochs, places, steps of epochs and their ends are those of a walk, in whatever order they are asked for."""
    for seed in range(120):
        num_samples, schedule, last = drawn(seed)
        cuts, expected = Cuts(num_samples, schedule, last), walked(num_samples, schedule, last, 81)
        ends = cuts.every(2)
        for step in random.Random(seed).sample(range(1, 81), 80):
            stretch, index = cuts.find(step)
            case = (num_samples, schedule.score, last, step)
            assert (stretch.epoch, *stretch.places(index)) == expected[step - 1], case
            following = expected[step][0]
            assert ends(step) == (following != stretch.epoch and following % 2 == 0), case
        for epochs in range(1, expected[-1][0] + 1):
            assert cuts.steps_of(epochs) == sum(epoch < epochs for epoch, *_ in expected)


@pytest.mark.parametrize("unit", UNITS)
def test_each_sample_once_an_epoch(unit):
    """While the batches grow, with pools of similar lengths too; steps far away cost nothing."""
    lengths = np.arange(50) % 7
    schedule = BatchSchedule({0: 4, 5: 9, 20: 25}, unit=unit)
    for more in ({}, {"lengths": lengths, "length_pool": 3}):
        sampler = ExactSampler(50, schedule, 3, seed=1, **more)
        for epoch in range(4):
            steps = range(sampler.cuts.steps_of(epoch) + 1 if epoch else 1, sampler.cuts.steps_of(epoch + 1) + 1)
            assert sorted(np.concatenate([sampler.batch(step) for step in steps]).tolist()) == list(range(50))
        assert len(sampler.batch(10**12)) == 25
    first = ExactSampler(50, 4, 3, seed=1)
    assert all(np.array_equal(first.batch(step), ExactSampler(50, schedule, 3, seed=1).batch(step)) for step in (1, 5))


def test_a_schedule_of_one_size_is_that_size():
    """It tells the score nothing more."""
    assert schedule_of(8).score == {} == BatchSchedule({0: 8}).score
    assert BatchSchedule({3: 9, 0: 8}).score == {"batch_schedule": {"unit": "steps", "sizes": [[0, 8], [3, 9]]}}


@pytest.mark.parametrize(
    ("sizes", "unit", "said"),
    [(64, "steps", "as a dictionary, got 64"), ({5: 64}, "steps", r"to begin with, as in \{0: 64\}"),
     ({0: 0}, "steps", "batch_size as a whole number of samples from 1"), ({0: 4, -1: 2}, "steps", "steps done"),
     ({0: 4, 1.5: 2}, "epochs", "epochs done"), ({0: 4}, "batches", "'steps' or 'epochs', got 'batches'")],
)  # fmt: skip
def test_wrong_schedules(sizes, unit, said):
    """What was expected, and what was got."""
    with pytest.raises(ConfigError, match=said):
        BatchSchedule(sizes, unit=unit)


def test_what_the_largest_size_would_drop():
    """An epoch of which nothing is left is refused, also where it comes later."""
    Cuts(10, BatchSchedule({0: 4, 7: 10}), "drop")
    with pytest.raises(DataError, match=r"leaves nothing of 10 samples: they do not fill a batch of 11"):
        Cuts(10, BatchSchedule({0: 4, 7: 11}), "drop")
