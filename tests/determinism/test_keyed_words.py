"""Random words in bulk: of their key alone, and places drawn from them with equal chances."""

import numpy as np
import pytest

from unisono.determinism.keyed_words import keyed_places, keyed_words


def test_words_are_those_of_splitmix64():
    """The sequence that the method's authors publish for the start 1234567: counters 1, 2, 3 and so on."""
    found = keyed_words(1234567, np.arange(1, 6, dtype=np.uint64))
    assert found.tolist() == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 3, 2**40 + 1, 2**62 + 2**61, 2**63])
def test_places_lie_in_their_range(count):
    """Also where a quarter of all words must be drawn again; each index alone gives the same as among others."""
    indices = np.arange(500)
    found = keyed_places(7, indices, count)
    assert found.min() >= 0
    assert found.max() < count
    assert [int(keyed_places(7, indices[i : i + 1], count)[0]) for i in range(20)] == found[:20].tolist()
    assert count == 1 or (keyed_places(8, indices, count) != found).any()


def test_places_are_drawn_without_bias():
    """At three quarters of 2**63 the words' rest alone would favour the low places by half."""
    count = 2**62 + 2**61
    low = (keyed_places(1, np.arange(60_000), count) < count // 3).mean()
    assert abs(low - 1 / 3) < 0.01
    biased = (keyed_words(1, np.arange(60_000, dtype=np.uint64)) % np.uint64(count) < np.uint64(count // 3)).mean()
    assert abs(biased - 1 / 3) > 0.03  # the control
