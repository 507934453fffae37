"""Keyed numbers for places, many at a time: what is drawn at a place depends on seed and place alone (pure)."""

import numpy as np

from unisono.data.lengths import Indices
from unisono.determinism.keyed_words import Words, keyed_words
from unisono.determinism.seeding import mix

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def draws(places: Indices, bound: int, seed: int, purpose: str) -> Indices:
    """Return a number of ``range(bound)`` for each place, all equally likely (to one in 2**64 / bound).

    A word's product with `bound` is cut to its upper half, in place of a division (Lemire, arXiv 1805.10941).

    Args:
        places: int64 (n,), not negative.
        bound: From 1 to 2**62.
        seed: The run's seed.
        purpose: As in `mix`.
    """
    return _upper_half(_words(places, seed, purpose), bound).astype(np.int64)


def shuffled_rows(first: int, stop: int, length: int, seed: int, purpose: str) -> Indices:
    """Return a permutation of ``range(length)`` for each number ``first..stop - 1``: int64 (stop - first, length).

    For whole rows in a tenth of the time of `permute`, which finds single places.
    """
    words = _words(np.arange(first * length, stop * length), seed, purpose)
    return np.argsort(words.reshape(-1, length), axis=1, kind="stable").astype(np.int64)


def _words(places: Indices, seed: int, purpose: str) -> Words:
    return keyed_words(mix(seed, purpose), places.astype(np.uint64))


def _upper_half(words: Words, bound: int) -> Words:
    """Return ``words * bound >> 64`` by products of half words, none of which is longer than a word."""
    high, low = words >> _HALF, words & _LOW
    bound_high, bound_low = np.uint64(bound >> 32), np.uint64(bound & 0xFFFFFFFF)
    first = high * bound_low
    second = low * bound_high + ((low * bound_low) >> _HALF)
    carried = ((first & _LOW) + (second & _LOW)) >> _HALF
    upper: Words = high * bound_high + (first >> _HALF) + (second >> _HALF) + carried
    return upper
