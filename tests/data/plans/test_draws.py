"""Numbers below a bound, from place and seed alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unisono.data.plans.draws import _upper_half, draws


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5), st.integers(1, 2**62))
def test_upper_halves_are_exact(words, bound):
    """Against Python's whole numbers, at every carry."""
    found = _upper_half(np.array(words, dtype=np.uint64), bound)
    assert found.tolist() == [word * bound >> 64 for word in words]


def test_draws_are_even_and_keyed():
    """Each of seven about as often; other seeds and purposes draw others; a place alone is that place of many."""
    places = np.arange(70_000)
    found = draws(places, 7, 3, "weighted")
    assert abs(np.bincount(found, minlength=7) - 10_000).max() < 400
    assert draws(places[77:78], 7, 3, "weighted")[0] == found[77]
    for other in (draws(places, 7, 4, "weighted"), draws(places, 7, 3, "crop")):
        assert 0.1 < (other == found).mean() < 0.18
