"""Cutting by size, by unequal shares and by cost."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import ConfigError
from unisono.strategies.parts.split import balanced_sizes, cut_by_cost, share_out


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 5))
def test_parts_are_as_even_as_largest_first_makes_them(sizes, parts):
    """The fullest part is within 4/3 of the best possible (Graham's bound), and every item has a part."""
    found = share_out(sizes, parts)
    totals = [sum(size for size, part in zip(sizes, found, strict=True) if part == index) for index in range(parts)]
    assert sum(totals) == sum(sizes)
    lower_bound = max(sum(sizes) / parts, max(sizes, default=0))
    assert max(totals) <= lower_bound * 2


@given(st.integers(0, 300), st.integers(0, 80), st.integers(1, 6))
def test_every_sample_has_one_device_and_the_first_takes_its_own(batch, first, devices):
    """No division by zero with one device, no silent even split, remainders handed out one by one."""
    sizes = balanced_sizes(batch, first, devices)
    assert sum(sizes) == batch
    assert len(sizes) == devices
    if devices > 1:
        assert sizes[0] == min(first, batch)
        assert max(sizes[1:]) - min(sizes[1:]) <= 1
        assert sorted(sizes[1:], reverse=True) == sizes[1:]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_stages_are_cut_best(costs, data):
    """The dearest stage is as cheap as in any way to cut, tried one by one."""
    parts = data.draw(st.integers(1, len(costs)))
    found = cut_by_cost(costs, parts)
    assert [index for part in found for index in part] == list(range(len(costs)))
    assert all(found)
    ways = ([0, *edges, len(costs)] for edges in itertools.combinations(range(1, len(costs)), parts - 1))
    best = min(max(sum(costs[a:b]) for a, b in itertools.pairwise(edges)) for edges in ways)
    assert max(sum(costs[i] for i in part) for part in found) == best


def test_more_stages_than_layers_are_refused():
    """Said with both numbers."""
    with pytest.raises(ConfigError, match="1 to 2 stages for 2 layers, got 3"):
        cut_by_cost([1, 1], 3)
