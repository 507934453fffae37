"""Tokenising on all cores: the result of one process, and errors instead of missing texts."""

import io
import json
import sys
from itertools import pairwise

import numpy as np
import pytest

from unisono.data.sets import parallel
from unisono.data.sets.parallel import merge, serve, tokenise_all
from unisono.data.sets.text import tokenise
from unisono.errors import DataError

TEXTS = [f"Word{number % 37} and{number % 5}, it's {number}!" for number in range(500)] + ["", "  ", "Σ İ \x1c x"]


def same(one, other) -> bool:
    return (
        one.words == other.words and np.array_equal(one.ids, other.ids) and np.array_equal(one.offsets, other.offsets)
    )


@pytest.mark.parametrize("cuts", [(0, 250, 503), (0, 0, 1, 502, 503), (0, 503)])
def test_parts_put_together_are_the_whole(cuts):
    """Numbering goes on from part to part in order of first appearance, also over empty parts."""
    parts = [tokenise(TEXTS[start:stop]) for start, stop in pairwise(cuts)]
    assert same(merge(parts), tokenise(TEXTS))
    assert len(parts) == 1 or not same(merge(parts[::-1]), tokenise(TEXTS))


def test_two_processes_give_the_result_of_one():
    """Bit-equal tokens, offsets and words, the odd characters included."""
    assert same(tokenise_all(TEXTS, num_processes=2), tokenise(TEXTS))


@pytest.mark.parametrize("num_processes", [1, 2])
def test_told_how_far(num_processes):
    """The number of texts that are done grows to all of them, whoever cuts them."""
    told = []
    tokenise_all(TEXTS * 3, num_processes=num_processes, tell=lambda *what: told.append(what))
    what, done, total = zip(*told, strict=True)
    assert set(what) == {"cutting texts into tokens"} and set(total) == {3 * len(TEXTS)}
    assert list(done) == sorted(done) and done[0] == 0 and done[-1] == 3 * len(TEXTS)
    assert len(set(done)) > 2


def test_few_texts_are_cut_here(monkeypatch):
    """No process is started for what is done before it would have started."""
    monkeypatch.setattr(parallel.subprocess, "run", None)
    assert same(tokenise_all(TEXTS), tokenise(TEXTS))


def test_a_helper_answers_what_it_was_given():
    """One share in, its tokens out."""
    out = io.BytesIO()
    serve(io.BytesIO(json.dumps(["a b", "b"]).encode()), out)
    assert out.getvalue()[24:36] == np.array([0, 1, 1], dtype=np.int32).tobytes()


def test_a_dead_helper_is_an_error(monkeypatch):
    """A helper that fails leaves no gap: the whole fails, with its last words."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DataError, match="ended with code 1: it said nothing"):
        tokenise_all(TEXTS, num_processes=2)
