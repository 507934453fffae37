"""The models for texts: texts of any length, judged on their own words only, by the article's mathematics."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from unisono.data.sets import text
from unisono.data.sets.texts import PAD, PackedTexts, pack, pad
from unisono.recipes.gated_cnn import ALIGN, BEHIND, LEAST, RECEPTIVE_FIELD, BagOfWords, GatedCNN, places_of

VOCABULARY = 50
EVERY = [GatedCNN, BagOfWords, lambda v: GatedCNN(v, readout="all")]


def sample(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([length, seed]).integers(1, VOCABULARY, size=length, dtype=np.int32)


def build(kind, seed: int = 0, **more):
    torch.manual_seed(seed)
    return kind(VOCABULARY, **more).eval()


@pytest.mark.parametrize(("kind", "size"), [(GatedCNN, 1_214_594), (BagOfWords, 960_130)])
def test_the_models_have_the_known_sizes(kind, size):
    """Parameter counts at a vocabulary of 15,000."""
    assert sum(parameter.numel() for parameter in kind(15_000).parameters()) == size


def test_pads_are_the_token_store_s():
    """The number that pads is the one that never stands for a word."""
    assert PAD == text.PAD == 0 != text.UNK


def test_the_model_knows_how_texts_are_packed():
    """Alignment and least place are those of `pack`."""
    lengths = [1, 48, 49, 146, 147, 148, 500]
    packed = pack([sample(length) for length in lengths], align=ALIGN, least=LEAST, behind=BEHIND)
    assert packed.tokens.equal(pack([sample(length) for length in lengths]).tokens)
    assert places_of(packed.lengths).sum() == len(packed.tokens)


def as_written(model: GatedCNN, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The network as the article writes it: padded texts, two Conv1d with their gates, a mean.

    It is of the first windows, up to the one that sees the last word.
    """
    x = model.embedding(F.pad(tokens, (0, RECEPTIVE_FIELD))).transpose(1, 2)
    for layer in (model.conv1, model.conv2):
        kernels = layer.weight.view(15, 64, 128).permute(2, 1, 0)
        value, gate = F.conv1d(x, kernels, layer.bias, stride=7).chunk(2, dim=1)
        x = value * torch.sigmoid(gate)
    means = []
    for row, length in zip(x, lengths.tolist(), strict=True):
        last = next(window for window in range(row.shape[1]) if 49 * window + RECEPTIVE_FIELD >= length)
        means.append(row[:, : last + 1].mean(dim=1))
    return model.classify(torch.stack(means))


@pytest.mark.parametrize("seed", range(3))
def test_packed_windows_are_the_article_s_network(seed):
    """Scores and all gradients equal those of padded texts through nn.Conv1d, up to rounding."""
    chosen = [1, 30, 112, 113, 114, 147, 162, 163, 260, 401]
    texts = [sample(length, seed) for length in chosen]
    model = build(GatedCNN, seed).double()
    labels = torch.tensor([length % 2 for length in chosen])
    results = []
    for scores in (model(pack(texts)), as_written(model, *pad(texts, least=RECEPTIVE_FIELD))):
        model.zero_grad()
        F.cross_entropy(scores, labels).backward()
        results.append([scores.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_pads_are_seen_where_a_window_reaches_beyond_the_last_word():
    """Conv1d over the text without pads agrees only where its last window ends with the last word; docs say so."""
    model = build(GatedCNN, 3).double()
    apart = {}
    for length in (113, 120, 162, 211):
        x = model.embedding(torch.from_numpy(sample(length, 1)).long()[None]).transpose(1, 2)
        for layer in (model.conv1, model.conv2):
            x = F.glu(F.conv1d(x, layer.weight.view(15, 64, 128).permute(2, 1, 0), layer.bias, stride=7), dim=1)
        apart[length] = (model(pack([sample(length, 1)])) - model.classify(x.mean(dim=2))).abs().max().item()
    assert max(apart[length] for length in (113, 162, 211)) < 1e-12
    assert 1e-4 < apart[120] < 1e-2


@pytest.mark.parametrize("readout", ["last", "all"])
@pytest.mark.parametrize("length", [113, 114, 147, 161, 162, 163, 180, 212])
def test_the_last_word_counts(readout, length):
    """Another last word gives other features of both convolutions: a text's end is not cut off."""
    model, read = build(GatedCNN, readout=readout), []
    model.classify.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0][0]))
    for last in (5, 6):
        words = sample(length)
        words[-1] = last
        model(pack([words, sample(130)]))
    differs = (read[0] != read[1]).view(-1, 64).any(dim=1)
    levels = {"last": [True], "all": [True] * 3}[readout]
    assert differs[: len(levels)].tolist() == levels


@pytest.mark.parametrize("build_one", EVERY)
def test_a_text_of_one_token_works(build_one):
    """The shortest text has finite scores and finite gradients."""
    model = build(build_one).train()
    loss = F.cross_entropy(model(pack([sample(1)])), torch.tensor([1]))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_peaks_are_the_largest_of_a_text_s_own_windows():
    """Against the first convolution of each text alone; its mean and its neighbours' largest are something else."""
    model = build(GatedCNN, readout="all")
    texts = [sample(length) for length in (3, 15, 40, 147, 260)]
    packed = pack(texts)
    read = []
    model.classify.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    model(packed)
    for row, words in enumerate(texts):
        whole = max(15, 15 + -(-(len(words) - 15) // 7) * 7)  # up to the window that sees the last word
        x = model.embedding(pad([words], least=whole).tokens).transpose(1, 2)
        kernels = model.conv1.weight.view(15, 64, 128).permute(2, 1, 0)
        windows = F.glu(F.conv1d(x, kernels, model.conv1.bias, stride=7), dim=1)[0]
        assert torch.allclose(read[0][row, 192:], windows.amax(dim=1), atol=1e-6)
        assert len(words) < 22 or not torch.allclose(read[0][row, 192:], windows.mean(dim=1), atol=1e-3)


def test_disturbed_training_is_finite_and_random():
    """All regularisation at once: other scores each time, none of them in evaluation."""
    model = build(GatedCNN, word_dropout=0.3, dropout=0.5, feature_dropout=0.3, shift=49, readout="all").train()
    texts = pack([sample(length) for length in (1, 20, 113, 300)])
    one, two = model(texts), model(texts)
    assert torch.isfinite(one).all()
    assert not torch.equal(one, two)
    model.eval()
    assert torch.equal(model(texts), model(texts))


def test_a_shift_moves_texts_to_the_left():
    """What is left of a text after a shift is the text without its first words."""
    model = build(GatedCNN, shift=49).train()
    texts = pack([sample(200), sample(300, 1)])
    torch.manual_seed(3)
    tokens, lengths = model._disturb(texts.tokens, texts.lengths)
    start = 200 - int(lengths[0])
    assert 0 < start < 49
    assert lengths.tolist() == [200 - start, 300 - start]
    assert tokens[: 200 - start].tolist() == sample(200)[start:].tolist()
    second = int(places_of(texts.lengths)[0])
    assert tokens[second : second + 300 - start].tolist() == sample(300, 1)[start:].tolist()


lengths = st.integers(1, 140) | st.sampled_from([112, 113, 114, 161, 162, 163, 211, 212, 260])


@pytest.mark.parametrize("build_one", EVERY)
@settings(max_examples=8, deadline=None)
@given(st.lists(lengths, min_size=2, max_size=5))
def test_scores_of_a_text_do_not_depend_on_its_neighbours(build_one, chosen):
    """Alone or among others, first or last, a text has the same scores."""
    model = build(build_one)
    texts = [sample(length, seed) for seed, length in enumerate(chosen)]
    with torch.inference_mode():
        together = model(pack(texts))
        backwards = model(pack(texts[::-1])).flip(0)
        alone = torch.cat([model(pack([one])) for one in texts])
    assert torch.allclose(together, alone, atol=1e-6)
    assert torch.allclose(together, backwards, atol=1e-6)


def test_a_mean_over_pads_would_be_noticed():
    """The control: with wrong lengths the scores are others, and words do count, each for its own text."""
    model = build(GatedCNN)
    texts = pack([sample(10), sample(400)])
    changed = texts.tokens.clone()
    changed[4] = changed[4] % (VOCABULARY - 1) + 1
    with torch.inference_mode():
        right = model(texts)
        longer = model(PackedTexts(texts.tokens, torch.tensor([162, 400])))
        other = model(PackedTexts(changed, texts.lengths))
    assert not torch.allclose(right[0], longer[0], atol=1e-6)
    assert not torch.equal(right[0], other[0])
    assert torch.equal(right[1], other[1])


@pytest.mark.parametrize("kind", [GatedCNN, BagOfWords])
def test_the_pad_stays_nothing(kind):
    """Training never gives the pad a meaning: its embedding is zero, or never read."""
    model = build(kind).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    texts, labels = pack([sample(5), sample(200)]), torch.tensor([1, 0])
    before = model.embedding.weight[PAD].clone()
    words = model.embedding.weight[1:].clone()
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(texts), labels).backward()
        optimizer.step()
    assert torch.equal(model.embedding.weight[PAD], before)
    assert not torch.equal(model.embedding.weight[1:], words)
    assert kind is BagOfWords or not before.any()


def test_the_initial_weights_are_those_of_a_convolution():
    """Uniform within the bounds that nn.Conv1d draws from."""
    ours, theirs = build(GatedCNN).conv1.weight, nn.Conv1d(64, 64, 15, stride=7).weight
    assert abs(ours.abs().max() - theirs.abs().max()) < 1e-3
    assert abs(ours.std() - theirs.std()) < 1e-3
