"""The order in which samples are suspected."""

import math

import pytest

from unisono.observe.suspects import MEASURES, order


def sample(name, *, loss=1.0, gradient=1.0, change=1.0, scale=1.0):
    return {"name": name, "loss": loss, "gradient_norm": gradient, "change": change, "scale": scale}


SAMPLES = [
    sample("plain"),
    sample("changing", change=5.0),
    sample("large", scale=3.5, change=0.0),
    sample("small", scale=0.1, change=0.1),
    sample("lossy", loss=9.0, scale=None),
    sample("steep", gradient=7.0, scale=math.nan),
]


@pytest.mark.parametrize(
    ("by", "first"),
    [
        ("suspect", ["large", "small", "lossy"]),
        ("change", ["changing"]),
        ("loss", ["lossy"]),
        ("gradient", ["steep"]),
    ],
)
def test_each_measure_has_its_own_order(by, first):
    """Out of scale comes first where samples are suspected, and has no say in the other orders."""
    found = [one["name"] for one in sorted(SAMPLES, key=lambda one: order(one, by))]
    assert found[: len(first)] == first
    assert by in MEASURES


@pytest.mark.parametrize("bad", [None, math.nan])
def test_what_is_no_number_comes_first(bad):
    """A loss that is no number is the first suspect by loss; what is out of scale stays before it."""
    found = sorted([*SAMPLES, sample("bad", loss=bad, change=bad)], key=lambda one: order(one, "loss"))
    assert found[0]["name"] == "bad"
    found = sorted([*SAMPLES, sample("bad", loss=bad)], key=lambda one: order(one, "suspect"))
    assert [one["name"] for one in found[:3]] == ["large", "small", "bad"]
