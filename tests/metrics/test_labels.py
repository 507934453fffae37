"""Counts of labels are scikit-learn's, exactly, however the samples are dealt out to ranks."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from metrics.shards import same_everywhere
from unisono.errors import ConfigError
from unisono.metrics.labels import F1, ConfusionMatrix, Precision, Recall

THEIRS = {
    Precision: sklearn_metrics.precision_score,
    Recall: sklearn_metrics.recall_score,
    F1: sklearn_metrics.f1_score,
}


def data(num_samples=101, num_classes=5, seed=0):
    """Return scores and targets; one class is rare and one is never a target."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(num_samples, num_classes, generator=generator)
    targets = torch.randint(0, num_classes - 1, (num_samples,), generator=generator)
    return scores, torch.where(targets == 1, torch.arange(num_samples) % 2, targets)


def test_the_confusion_matrix_is_scikit_learns():
    """Every count, as targets down and predictions across, on one to four ranks."""
    scores, targets = data()
    table = ConfusionMatrix(5)
    cells = same_everywhere(lambda: ConfusionMatrix(5), scores, targets)
    theirs = sklearn_metrics.confusion_matrix(targets, scores.argmax(1), labels=range(5))
    assert list(cells.values()) == theirs.reshape(-1).tolist()
    assert list(cells)[:6] == ["0->0", "0->1", "0->2", "0->3", "0->4", "1->0"]
    table.update(scores.argmax(1), targets)
    assert table.counts.tolist() == theirs.tolist()
    assert sum(cells.values()) == 101


@pytest.mark.parametrize("metric", THEIRS)
@pytest.mark.parametrize("average", ["micro", "macro", "weighted", "none"])
def test_ratios_are_scikit_learns(metric, average):
    """Precision, recall and F1, averaged in each way, on one to four ranks; labels that never occur count as 0."""
    scores, targets = data()
    ours = same_everywhere(lambda: metric(5, average=average), scores, targets)
    theirs = THEIRS[metric](
        targets, scores.argmax(1), labels=range(5), average=None if average == "none" else average, zero_division=0
    )
    if average == "none":
        assert list(ours) == ["0", "1", "2", "3", "4"]
        assert list(ours.values()) == theirs.tolist()
    else:
        assert ours == pytest.approx(theirs, rel=1e-15)


def test_the_counts_behind_the_ratios_are_exact():
    """Hits, false alarms and misses of every label are those of scikit-learn's tables."""
    scores, targets = data()
    f1 = F1(5)
    f1.update(scores, targets)
    tables = sklearn_metrics.multilabel_confusion_matrix(targets, scores.argmax(1), labels=range(5))
    assert f1.counts.tolist() == [tables[:, 1, 1].tolist(), tables[:, 0, 1].tolist(), tables[:, 1, 0].tolist()]


def test_some_labels_alone():
    """Without the background class: its samples are false alarms and misses of others, but no label."""
    scores, targets = data()
    ours = same_everywhere(lambda: F1(5, average="micro", labels=[1, 2, 3]), scores, targets)
    assert ours == sklearn_metrics.f1_score(targets, scores.argmax(1), labels=[1, 2, 3], average="micro")


@pytest.mark.parametrize("average", ["micro", "macro", "none"])
def test_many_labels_at_once(average):
    """With a threshold every label is decided alone, as in scikit-learn's multi-label case."""
    generator = torch.Generator().manual_seed(1)
    scores, targets = torch.rand(53, 4, generator=generator), torch.randint(0, 2, (53, 4), generator=generator)
    ours = same_everywhere(lambda: F1(4, average=average, threshold=0.5), scores, targets)
    theirs = sklearn_metrics.f1_score(targets, scores >= 0.5, average=None if average == "none" else average)
    assert list(ours.values()) == theirs.tolist() if average == "none" else ours == pytest.approx(theirs, rel=1e-15)


def test_one_label_with_a_threshold():
    """Binary: scores (n,) against 0 and 1; ignored targets are left out."""
    scores, targets = torch.tensor([0.9, 0.2, 0.6, 0.7]), torch.tensor([1, 1, 0, -1])
    precision = Precision(1, threshold=0.5, ignore_index=-1)
    precision.update(scores, targets)
    assert precision.state == [1, 1, 1]
    assert precision.compute() == 0.5


def test_padding_is_left_out():
    """Targets with the ignored number count nowhere; tokens of texts are samples."""
    scores, targets = data(60)
    texts, labels = scores.view(6, 10, 5).movedim(-1, 1), targets.view(6, 10).clone()
    labels[:, 7:] = -100
    kept = labels.reshape(-1) != -100
    ours = same_everywhere(lambda: ConfusionMatrix(5, ignore_index=-100), texts, labels, batch_size=2)
    theirs = sklearn_metrics.confusion_matrix(labels.reshape(-1)[kept], scores.argmax(1)[kept], labels=np.arange(5))
    assert list(ours.values()) == theirs.reshape(-1).tolist()


def test_names_instead_of_numbers():
    """Labels are shown under their names."""
    recall = Recall(2, average="none", names=["cat", "dog"])
    recall.update(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]))
    assert recall.compute() == {"cat": 0.5, "dog": 1.0}


def test_averages_of_averages_are_another_number():
    """Negative control: macro F1 of shards, averaged, is not the macro F1."""
    scores, targets = data()
    parts = [F1(5), F1(5)]
    parts[0].update(scores[:13], targets[:13])
    parts[1].update(scores[13:], targets[13:])
    assert sum(part.compute() for part in parts) / 2 != same_everywhere(lambda: F1(5), scores, targets)


def test_nothing_seen_is_zero():
    """Before any sample every ratio is 0, and a reset goes back there."""
    for average in ("micro", "macro", "weighted"):
        f1 = F1(3, average=average)
        assert f1.compute() == 0.0
        f1.update(torch.tensor([1, 2]), torch.tensor([1, 2]))
        assert f1.compute() > 0
        f1.reset()
        assert f1.state == [0] * 9


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: F1(1), "num_classes >= 2, got 1"),
        (lambda: F1(3, average="mean"), "expected average"),
        (lambda: F1(3, labels=[3]), r"labels in 0..2, got \[3\]"),
        (lambda: F1(3, labels=[]), "labels in"),
        (lambda: ConfusionMatrix(3, names=["a", "b", "a"]), "3 different names"),
        (lambda: F1(3).update(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)), "scores of 3 classes, got 2"),
        (lambda: F1(3).update(torch.zeros(4), torch.zeros(4, dtype=torch.int64)), "integer classes"),
        (lambda: F1(3).update(torch.zeros(4, 3), torch.full((4,), 3)), r"targets in 0..2, got 3..3"),
        (lambda: F1(3).update(torch.full((4,), -1), torch.zeros(4, dtype=torch.int64)), "predictions in 0..2"),
        (lambda: F1(3, threshold=0.5).update(torch.zeros(4, 2), torch.zeros(4, 2)), r"\(n, 3\)"),
        (lambda: F1(2, threshold=0.5).update(torch.zeros(4, 2), torch.full((4, 2), 7)), "targets 0 or 1"),
    ],
)
def test_wrong_settings_and_shapes_are_refused(make, words):
    """What could only be counted wrongly is an error that shows it."""
    with pytest.raises(ConfigError, match=words):
        make()


def test_nan_is_no_class():
    """Scores with NaN are no prediction: a miss of their class, a false alarm of none, a column of their own."""
    scores, targets = data()
    scores[3, 2] = scores[50] = float("nan")
    bad = [3, 50]
    good = [place for place in range(101) if place not in bad]
    guesses = torch.where(scores.isnan().any(1), 5, scores.argmax(1))  # a sixth class that no target has
    table = ConfusionMatrix(5)
    cells = same_everywhere(lambda: ConfusionMatrix(5), scores, targets)
    table.update(scores, targets)
    theirs = sklearn_metrics.confusion_matrix(targets, guesses, labels=range(6))
    assert table.counts.tolist() == theirs[:5, :5].tolist()
    assert table.num_bad.tolist() == theirs[:5, 5].tolist()
    assert sum(table.num_bad.tolist()) == 2
    assert sum(cells.values()) == 101
    assert {name: count for name, count in cells.items() if name.endswith("->nan")} == {
        f"{label}->nan": float(count) for label, count in enumerate(theirs[:5, 5])
    }
    for metric, average in [(F1, "macro"), (Precision, "micro"), (Recall, "weighted"), (F1, "none")]:
        ours = same_everywhere(lambda metric=metric, average=average: metric(5, average=average), scores, targets)
        expected = THEIRS[metric](
            targets, guesses, labels=range(5), average=None if average == "none" else average, zero_division=0
        )
        assert list(ours.values() if average == "none" else [ours]) == pytest.approx(
            list(expected if average == "none" else [expected]), rel=1e-15
        )
    without = ConfusionMatrix(5)
    without.update(scores[good], targets[good])
    assert not [name for name in without.compute() if name.endswith("nan")]


@pytest.mark.parametrize("shape", [(0, 3), (0,)])
def test_an_empty_batch_counts_nothing(shape):
    """A rank without a sample updates as others do, also label by label."""
    f1 = F1(3 if len(shape) == 2 else 1, threshold=0.5)
    f1.update(torch.zeros(shape), torch.zeros(shape, dtype=torch.int64))
    assert f1.compute() == 0.0
    assert not f1.counts.any()
    one = F1(3)
    one.update(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    assert one.compute() == 0.0
    with pytest.raises(ConfigError, match=r"outputs and targets \(n, 3\)"):
        F1(3, threshold=0.5).update(torch.zeros(0, 2), torch.zeros(0, 2))
