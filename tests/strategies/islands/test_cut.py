"""Replicas are cut into equal islands, or the rule is told."""

import pytest

from unisono.errors import ConfigError
from unisono.strategies.islands.cut import island_size


@pytest.mark.parametrize(("replicas", "islands", "size"), [(8, None, 1), (8, 8, 1), (8, 2, 4), (8, 1, 8), (1, None, 1)])
def test_islands_are_equal_parts(replicas, islands, size):
    """As many consecutive replicas each; one each where nothing is said."""
    assert island_size(replicas, islands) == size


@pytest.mark.parametrize("islands", [3, 16])
def test_what_does_not_divide_is_refused(islands):
    """Also more islands than replicas; the numbers that fit are named."""
    with pytest.raises(ConfigError, match=rf"8 replicas into equal parts, got {islands}. Hint: .* one of 1, 2, 4, 8,"):
        island_size(8, islands)
