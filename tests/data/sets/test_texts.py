"""Texts as micro-batches: packed or padded, cut and counted, mapped and never copied."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from unisono.data.datasets import BatchedDataset, HasLengths
from unisono.data.files.cache import cached_directory
from unisono.data.loader import Fetcher, Task, fetch_all, sampler_of
from unisono.data.sets.text import PAD, TokenStore
from unisono.data.sets.texts import Texts, pack, pad
from unisono.errors import ConfigError


def store(sizes) -> TokenStore:
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    tokens = np.random.default_rng(0).integers(1, 50, int(offsets[-1]), dtype=np.int32)
    return TokenStore(tokens=tokens, offsets=offsets, labels=np.arange(len(sizes)) % 2)


def test_packed_texts_stand_one_after_another():
    """Each at a multiple of 49, in a place of at least 147, with 34 pads or more behind it."""
    texts = [np.full(3, 5, np.int32), np.full(162, 6, np.int32), np.full(163, 7, np.int32)]
    packed = pack(texts)
    assert packed.lengths.tolist() == [3, 162, 163]
    assert len(packed.tokens) == 147 + 196 + 245
    assert packed.tokens.dtype == packed.lengths.dtype == torch.int64
    for start, text in zip((0, 147, 343), texts, strict=True):
        assert packed.tokens[start : start + len(text)].tolist() == text.tolist()
    assert (packed.tokens == PAD).sum() == 144 + 34 + 82


def test_padded_texts_are_as_wide_as_their_own_longest():
    """Rows are a text and then pads."""
    padded = pad([np.full(3, 5, np.int32), np.full(9, 6, np.int32)])
    assert padded.tokens.shape == (2, 9)
    assert padded.tokens[0].tolist() == [5] * 3 + [PAD] * 6
    assert pad([np.full(3, 5, np.int32)], least=20).tokens.shape == (1, 20)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_micro_batch_is_its_texts(layout):
    """In the order asked for, with their labels, and the loader takes it at once."""
    texts = Texts(store(range(1, 21)), np.array([4, 9, 19]), layout=layout)
    assert isinstance(texts, BatchedDataset)
    assert isinstance(texts, HasLengths)
    micro, labels = texts.fetch_micro_batch(np.array([2, 0]))
    assert micro.lengths.tolist() == [20, 5]
    assert labels.tolist() == [1, 0]
    assert [len(texts[index][0]) for index in range(len(texts))] == [5, 10, 20]


def test_truncation_is_counted():
    """What is cut off is known before training; without a maximum nothing is."""
    texts = Texts(store([5, 10, 20]), max_length=8)
    assert texts.truncated() == {"texts": 2, "tokens": 2 + 12}
    assert texts.lengths().tolist() == [5, 8, 8]
    assert len(texts[2][0]) == 8
    assert Texts(store([5, 10, 20])).truncated() == {"texts": 0, "tokens": 0}
    with pytest.raises(ConfigError, match="max_length as a whole number of tokens from 1"):
        Texts(store([5]), max_length=0)


def test_evaluation_order_holds_the_same_texts():
    """The same samples in batches of similar length."""
    texts = Texts(store(np.random.default_rng(1).integers(1, 90, 60)), max_length=50)
    again = texts.for_evaluation(10)
    assert sorted(again.chosen) == sorted(texts.chosen)
    assert again.max_length == 50
    spreads = [np.ptp(again.lengths()[start : start + 10]) for start in range(0, 60, 10)]
    assert max(spreads) < 30 < np.ptp(texts.lengths()[:10])


def test_loader_processes_change_no_bit():
    """0 and 2 loader processes give the same micro-batches, by length and all."""
    texts = Texts(store(np.random.default_rng(1).integers(1, 90, 60)), length_pool=3)
    sampler = sampler_of(texts, 16, 4, seed=0, shuffle=True)
    tasks = [Task(0, part) for step in range(1, 5) for part in sampler.micro_batches(step) if len(part)]
    here, there = (list(fetch_all(Fetcher(texts, 0), tasks, num_workers=count)) for count in (0, 2))
    assert len(here) == len(there) == 16
    for mine, theirs in zip(here, there, strict=True):
        assert torch.equal(mine.x.tokens, theirs.x.tokens)
        assert torch.equal(mine.y, theirs.y)


def test_the_fingerprint_says_what_batches_are_made_of():
    """Content and settings that change batches are told apart."""
    texts = store([3, 4])
    told = {
        Texts(texts, content=c, max_length=m, length_pool=p).fingerprint
        for c in "ab"
        for m in (None, 3)
        for p in (0, 9)
    }
    assert len(told) == 8


MEASURE = """
import re, sys
from pathlib import Path
import numpy as np
from unisono.data.sets.text import TokenStore
from unisono.data.sets.texts import Texts

store = TokenStore.open(Path(sys.argv[1]), "train")
texts = Texts(store)
for start in range(0, len(texts), 256):
    texts.fetch_micro_batch(np.arange(start, min(start + 256, len(texts))))
print(int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """A worker that has read a ten times repeated corpus holds as much memory of its own, but for 8 bytes a text."""
    sizes = np.random.default_rng(0).integers(50, 400, 8000)
    held = []
    for times in (1, 10):
        tokens = np.tile(store(sizes).tokens, times)
        offsets = np.concatenate([[0], np.cumsum(np.tile(sizes, times))]).astype(np.int64)
        whole = TokenStore(tokens=tokens, offsets=offsets, labels=np.zeros(len(offsets) - 1, np.int64))
        entry = cached_directory(tmp_path / f"corpus{times}", lambda directory: whole.save(directory, "train"))  # noqa: B023
        done = subprocess.run([sys.executable, "-c", MEASURE, str(entry)], capture_output=True, text=True, check=True)
        held.append(int(done.stdout) * 1024)
    assert tokens.nbytes > 60e6, "the corpus is too small to show anything"
    assert held[1] - held[0] < 8e6
