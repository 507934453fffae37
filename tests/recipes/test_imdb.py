"""The IMDB recipe: texts of any length, judged on their own words only."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from unisono.data import text
from unisono.data.text import TokenStore
from unisono.recipes.imdb import MODELS, PAD, RECEPTIVE_FIELD, BagOfWords, GatedCNN, Reviews, pad

VOCABULARY = 50


def sample(length: int, seed: int = 0) -> tuple[np.ndarray, int]:
    chance = np.random.default_rng([length, seed])
    return chance.integers(1, VOCABULARY, size=length, dtype=np.int32), length % 2


def build(kind, seed: int = 0):
    torch.manual_seed(seed)
    return kind(VOCABULARY).eval()


@pytest.mark.parametrize(("name", "size"), [("gcnn", 1_214_594), ("bag", 960_130)])
def test_the_models_have_the_known_sizes(name, size):
    """Parameter counts at a vocabulary of 15,000."""
    assert sum(parameter.numel() for parameter in MODELS[name](15_000).parameters()) == size


def test_pads_are_the_token_store_s():
    """The number that pads is the one that never stands for a word."""
    assert PAD == text.PAD == 0 != text.UNK


def test_texts_are_padded_to_their_own_longest():
    """Each row is the text and then pads; no longer than needed, but enough for one window."""
    (tokens, lengths), labels = pad([sample(3), sample(120), sample(7)])
    assert tokens.shape == (3, 120)
    assert lengths.tolist() == [3, 120, 7]
    assert labels.tolist() == [1, 0, 1]
    assert tokens[0, :3].tolist() == sample(3)[0].tolist()
    assert (tokens[0, 3:] == PAD).all()
    assert pad([sample(3)])[0][0].shape == (1, RECEPTIVE_FIELD)
    assert tokens.dtype == labels.dtype == torch.int64


@pytest.mark.parametrize("kind", [GatedCNN, BagOfWords])
def test_a_text_of_one_token_works(kind):
    """The shortest text has finite scores and finite gradients."""
    model = build(kind).train()
    texts, labels = pad([sample(1)])
    loss = F.cross_entropy(model(texts), labels)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


lengths = st.integers(1, 140) | st.sampled_from([112, 113, 114, 161, 162, 163, 211, 212, 260])


@pytest.mark.parametrize("kind", [GatedCNN, BagOfWords])
@settings(max_examples=25, deadline=None)
@given(st.lists(lengths, min_size=2, max_size=5), st.integers(0, 300))
def test_scores_of_a_text_do_not_depend_on_its_neighbours(kind, chosen, more):
    """Alone, beside longer texts, or with more pads at its end, a text has the same scores."""
    model = build(kind)
    samples = [sample(length, seed) for seed, length in enumerate(chosen)]
    (tokens, sizes), _ = pad(samples)
    with torch.inference_mode():
        together = model((tokens, sizes))
        wider = model((F.pad(tokens, (0, more), value=PAD), sizes))
        alone = torch.cat([model(pad([one])[0]) for one in samples])
    assert torch.allclose(together, alone, atol=1e-6)
    assert torch.allclose(together, wider, atol=1e-6)


def test_a_mean_over_pads_would_be_noticed():
    """The control: without the lengths the scores do depend on the neighbours, and words do count."""
    model = build(GatedCNN)
    (tokens, sizes), _ = pad([sample(10), sample(400)])
    with torch.inference_mode():
        right = model((tokens, sizes))
        unmasked = model((tokens, torch.full_like(sizes, 400)))
        tokens[0, 4] = tokens[0, 4] % (VOCABULARY - 1) + 1
        changed = model((tokens, sizes))
    assert not torch.allclose(right[0], unmasked[0], atol=1e-6)
    assert not torch.equal(right[0], changed[0])
    assert torch.equal(right[1], changed[1])


@pytest.mark.parametrize("kind", [GatedCNN, BagOfWords])
def test_the_pad_stays_nothing(kind):
    """Training never gives the pad a meaning: its embedding is zero, or never read."""
    model = build(kind).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    texts, labels = pad([sample(5), sample(200)])
    before = model.embedding.weight[PAD].clone()
    words = model.embedding.weight[1:].clone()
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(texts), labels).backward()
        optimizer.step()
    assert torch.equal(model.embedding.weight[PAD], before)
    assert not torch.equal(model.embedding.weight[1:], words)
    assert kind is BagOfWords or not before.any()


def store(sizes) -> TokenStore:
    texts = [sample(size, seed)[0] for seed, size in enumerate(sizes)]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return TokenStore(
        tokens=np.concatenate(texts), offsets=offsets.astype(np.int64), labels=np.arange(len(sizes)) // 10
    )


def test_reviews_are_spread_and_taken_as_they_are_padded():
    """A limit keeps both labels, and a micro-batch is its texts, padded, in the order asked for."""
    reviews = Reviews(store(range(1, 21)), limit=4)
    assert [len(reviews[index][0]) for index in range(len(reviews))] == [1, 6, 11, 16]
    (tokens, sizes), labels = reviews.fetch_micro_batch(np.array([3, 0]))
    assert sizes.tolist() == [16, 1]
    assert labels.tolist() == [1, 0]
    assert tokens[0, :16].tolist() == reviews[3][0].tolist()
    assert len(Reviews(store(range(1, 21)), limit=None)) == 20
