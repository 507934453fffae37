"""The fastest setting is proposed, unless a simpler one cannot be told from it."""

import pytest

from unisono.errors import ConfigError
from unisono.scaling.choice import Candidate, choose, spell


def made(workers, *rates, processes=None):
    return Candidate(setting={"workers": workers}, processes=processes or workers, rates=list(rates))


def test_clearly_faster_wins():
    """By its median, and the reason names the next."""
    best, why = choose([made(1, 100.0, 101.0), made(2, 180.0, 181.0), made(4, 150.0, 190.0)])
    assert best.setting == {"workers": 2}
    assert "faster than --workers 4" in why or "within the scatter" in why


def test_what_cannot_be_told_apart_takes_fewer_processes():
    """2 % is not worth a process, nor is anything within the scatter of both."""
    assert choose([made(1, 98.0, 98.0), made(2, 100.0, 100.0)])[0].setting == {"workers": 1}
    best, why = choose([made(1, 80.0, 100.0), made(2, 90.0, 120.0)])
    assert best.setting == {"workers": 1}
    assert "what can be told" in why


def test_scatter_of_one_side_hides_nothing():
    """A setting that is always faster wins although the other scatters."""
    assert choose([made(1, 50.0, 90.0), made(2, 200.0, 201.0)])[0].setting == {"workers": 2}


def test_the_edges():
    """One candidate, none; settings are spelt as they are typed."""
    assert choose([made(1, 5.0)]) == (made(1, 5.0), "the only one measured")
    with pytest.raises(ConfigError, match="none"):
        choose([])
    assert spell({"num_workers": 2, "threads": 1}) == "--num-workers 2 --threads 1"
