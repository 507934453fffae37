"""The area under the ROC curve is the exact quotient of pairs, and scikit-learn's, on any number of ranks."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from metrics.shards import same_everywhere
from unisono.errors import ConfigError
from unisono.metrics.auroc import AUROC

scored = st.lists(st.tuples(st.sampled_from([-1.5, -0.0, 0.0, 0.25, 3.0]), st.booleans()), max_size=25)


def pairs(scores, targets):
    """Return the share of (positive, negative) pairs in the right order, ties half: by counting all pairs."""
    positive = [score for score, target in zip(scores, targets, strict=True) if target]
    negative = [score for score, target in zip(scores, targets, strict=True) if not target]
    wins = [Fraction(1 if p > n else 0) if p != n else Fraction(1, 2) for p, n in itertools.product(positive, negative)]
    return sum(wins) / len(wins) if wins else None


@given(scored)
def test_it_counts_pairs(samples):
    """With ties and zeros of both signs: the share of all pairs, rounded once; NaN where there is no pair."""
    scores, targets = [score for score, _ in samples], [target for _, target in samples]
    metric = AUROC()
    metric.update(torch.tensor(scores), torch.tensor(targets, dtype=torch.int64))
    wanted = pairs(scores, targets)
    assert math.isnan(metric.compute()) if wanted is None else metric.compute() == float(wanted)


def test_scikit_learns_on_any_world():
    """One to four ranks give one number, scikit-learn's."""
    generator = torch.Generator().manual_seed(0)
    scores = (torch.randn(333, generator=generator) * 8).round() / 8  # with ties
    targets = (torch.rand(333, generator=generator) + 0.1 * scores > 0.5).long()
    ours = same_everywhere(AUROC, scores, targets)
    assert ours == pytest.approx(roc_auc_score(targets, scores), rel=1e-14)
    assert ours == float(pairs(scores.tolist(), targets.tolist()))


def test_two_columns_are_their_difference():
    """Scores of both classes: what counts is by how much the second is larger."""
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(50, 2, generator=generator), torch.randint(0, 2, (50,), generator=generator)
    ours = same_everywhere(AUROC, logits, targets)
    assert ours == pytest.approx(roc_auc_score(targets, logits.double().softmax(1)[:, 1]), rel=1e-14)


def test_many_classes():
    """Each class against the others, averaged, on any world; a class without samples does not count."""
    generator = torch.Generator().manual_seed(0)
    chances, targets = torch.randn(90, 4, generator=generator).softmax(1), torch.arange(90) % 3
    ours = same_everywhere(lambda: AUROC(4), chances, targets)
    each = [roc_auc_score(targets == label, chances[:, label]) for label in range(3)]
    assert ours == pytest.approx(sum(each) / 3, rel=1e-14)


def test_many_batches_are_compressed():
    """What is kept grows with the distinct scores, not with the samples."""
    metric = AUROC()
    for _ in range(300):
        metric.update(torch.arange(100) % 7 / 7, torch.arange(100) % 2)
    assert sum(map(len, metric._rows)) < 5000
    assert len(metric.state) == 1 + 7 * 4
    assert metric.compute() == auroc_of(torch.arange(100) % 7 / 7, torch.arange(100) % 2)


def auroc_of(scores, targets):
    metric = AUROC()
    metric.update(scores, targets)
    return metric.compute()


def test_averaging_shards_is_another_number():
    """Negative control: the mean of the shards' areas is not the area."""
    generator = torch.Generator().manual_seed(0)
    scores, targets = torch.randn(60, generator=generator), torch.randint(0, 2, (60,), generator=generator)
    halves = [auroc_of(scores[:20], targets[:20]), auroc_of(scores[20:], targets[20:])]
    assert sum(halves) / 2 != same_everywhere(AUROC, scores, targets)


def test_nan_is_nan_on_every_rank():
    """A NaN score is not sorted somewhere: the result is NaN, whichever rank saw it. A reset forgets it."""
    scores = torch.rand(30)
    scores[29] = math.nan
    assert math.isnan(same_everywhere(AUROC, scores, torch.arange(30) % 2))
    metric = AUROC()
    metric.update(scores, torch.arange(30) % 2)
    metric.reset()
    metric.update(scores[:20], torch.arange(20) % 2)
    assert 0 <= metric.compute() <= 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AUROC(1), "num_classes >= 2"),
        (lambda: auroc_of(torch.zeros(3, 3), torch.zeros(3)), "AUROC expects"),
        (lambda: auroc_of(torch.zeros(3), torch.zeros(2)), "AUROC expects"),
        (lambda: auroc_of(torch.zeros(2), torch.tensor([0, 2])), r"targets in 0..1, got 0..2"),
    ],
)
def test_wrong_shapes_are_refused(make, words):
    """Other shapes and targets are errors that show them."""
    with pytest.raises(ConfigError, match=words):
        make()
