"""Samples per second, wherever they are shown."""

import pytest

from unisono.observe.phases import PHASES
from unisono.observe.speed import samples_per_s, seconds_within


def test_samples_over_seconds():
    """All samples over all seconds, not the mean of rates; nothing where nothing was done."""
    assert samples_per_s([(64, 0.1), (64, 0.3), (32, 0.1)]) == pytest.approx(320)
    assert samples_per_s([]) is None
    assert samples_per_s([(64, 0.0)]) is None


def test_what_is_within_a_step():
    """What happens between two steps is no part of one: nothing of it makes a run look slow."""
    seconds = dict.fromkeys(PHASES, 1.0)
    assert seconds_within(seconds) == len(PHASES) - len(("checkpoint", "evaluate", "other"))
    assert seconds_within(seconds | {"checkpoint": 9.0, "evaluate": 9.0, "other": 9.0}) == seconds_within(seconds)
    assert seconds_within({"forward": 0.25}) == 0.25
