"""What is said of a curve: where it goes, and when it diverges."""

import math

from unisono.report.content import diverges, trend_of


def test_where_a_loss_goes():
    """Beyond its noise; nothing is said of a few steps or of what is no number."""
    noise = [0.1 * (-1) ** step for step in range(100)]
    for slope, word in ((-0.01, "falling"), (0.01, "rising"), (0.0, "level")):
        assert trend_of([(step, 3 + slope * step + noise[step]) for step in range(100)]) == word
    assert trend_of([(step, 1.0) for step in range(19)]) == ""
    assert trend_of([(step, math.nan) for step in range(99)]) == ""
    assert diverges([(1, 1.0), (2, math.inf)])
    assert not diverges([(1, 1.0), (2, 1.4)])
    assert not diverges([(1, -3.0), (2, -1.0)])  # a log-likelihood has no such bound
    assert not diverges([])
