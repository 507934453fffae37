"""A step of `exact` waits for a GPU once, whatever the model and its replicas: counted on the strict device."""

import pytest

import device_shapes
import device_waits
from forks import run_forked
from ranks import once


@once
def everything():
    """What the programs of `device_waits` give, in one process of their own."""
    return run_forked(device_waits.everything, 1)[0]


def played(program):
    """What one of them gives."""
    return everything()[program]


@once
def counted_large():
    """What the cases give that take long."""
    return run_forked(device_waits.counted_large, 1)[0]


NUMBERS = [
    pytest.param(number, id=str(case), marks=[pytest.mark.slow] * (number in device_waits.LARGE))
    for number, case in enumerate(device_waits.CASES)
]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_step_waits_once(number):
    """Losses, finiteness, checksums, flags and counters come in one read; bits and skipped steps are the CPU's."""
    _, _, settings, _ = device_waits.CASES[number]
    found = (counted_large() if number in device_waits.LARGE else played("counted"))[str(number)]
    for (waits, bits), (none, expected) in zip(*found, strict=True):
        searched = 4 if settings == "embed, poisoned" else 0  # in a step that is lost, replica by replica
        assert waits[1:] == [1 + searched] * 3
        assert 1 <= waits[0] - searched <= 4  # in the first one of a launch losses are looked at once more
        assert none == [0] * 4
        assert bits == expected or settings == "fp16", "the device casts nothing"
        assert bits[1] == (4 if settings.endswith("poisoned") else 0), "steps that were skipped"


@pytest.mark.parametrize(("number", "words"), [
    (0, "embed has returned other numbers, unlike in its first pass"), (1, "has changed the buffer '2.running_mean'"),
    (2, "replica 0 has been computed by all ranks, and no bits are those of most"),
])  # fmt: skip
def test_what_is_read_late_is_refused_alike(number, words):
    """Second passes and witnesses that do not say the same: the words of the CPU, with the same notes."""
    on_device, on_cpu = played("refusals")[number]
    assert words in on_device
    assert on_device == on_cpu


def test_a_step_launches_few_kernels():
    """Of ResNet-18 in 8 replicas fewer than 80, besides those of its passes, its update, and its data on their way."""
    found = played("launches")
    own = found["step"] - 8 * found["pass"] - found["update"] - 2 * 8
    assert 40 < own < 80, found


SHAPES = [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("GPT")) for name in device_shapes.SIZES]


@pytest.mark.parametrize("name", SHAPES)
def test_a_step_of_a_large_model_waits_once(name):
    """By shapes alone, of more parameters than this machine has memory for: one wait, whatever the replicas."""
    found = run_forked(device_shapes.steps, 1, name, [1, 2])[0]
    assert found["parameters"] > device_shapes.SIZES[name][2]
    assert [found[count][0] for count in ("1", "2")] == [1, 1], found


def test_batches_come_from_pinned_memory():
    """Nothing that a step needs is copied from memory that the driver has to copy first; a plain ``to`` is counted."""
    found = played("launches")
    assert (found["pageable"], found["control"]) == (0, 2)


def test_a_batch_lies_on_the_device_as_it_was():
    """Its strides stay, as with ``to``: transposed, channels last, spread out, with a gap, empty, or of one number."""
    told = played("carried")
    assert all(ours == torchs for ours, torchs in told), told


def test_a_read_more_is_counted():
    """The control: a loss function that reads its loss waits once more for each replica."""
    assert [waits[1:] for waits in played("control")] == [[2] * 3, [3] * 3]
