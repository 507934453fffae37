"""Samples per second, wherever they are shown."""

import pytest

from unisono.observe.speed import samples_per_s


def test_samples_over_seconds():
    """All samples over all seconds, not the mean of rates; nothing where nothing was done."""
    assert samples_per_s([(64, 0.1), (64, 0.3), (32, 0.1)]) == pytest.approx(320)
    assert samples_per_s([]) is None
    assert samples_per_s([(64, 0.0)]) is None
