"""Spans are read as CoNLL reads them and counted exactly, on any number of ranks."""

import random

import pytest
import torch

from metrics.shards import same_everywhere
from unisono.errors import ConfigError
from unisono.metrics.spans import SpanF1, decode

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("", []),
        ("O O", []),
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("I-PER I-PER", [("PER", 0, 2)]),
        ("O I-LOC I-PER", [("LOC", 1, 2), ("PER", 2, 3)]),
        ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("B-PER I-PER E-PER S-LOC", [("PER", 0, 3), ("LOC", 3, 4)]),
        ("S-PER S-PER O", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER E-PER I-PER", [("PER", 0, 2), ("PER", 2, 3)]),
        ("E-PER", [("PER", 0, 1)]),
        ("B-a-b I-a-b", [("a-b", 0, 2)]),
    ],
)
def test_spans_of_tags(text, spans):
    """Beginnings, continuations and ends in BIO, IO and BIOES, also where a span lacks its beginning."""
    assert decode(text.split()) == set(spans)


def begins(before, tag):
    """Say whether a span begins at `tag`, by the two tags alone: an independent statement of CoNLL's rule."""
    (prefix, _, kind), (last, _, old) = tag.partition("-"), before.partition("-")
    return prefix in ("B", "S") or (prefix in ("I", "E") and (last in ("O", "E", "S") or old != kind))


def test_as_many_spans_as_beginnings():
    """On random tags every beginning has one span, and spans do not overlap."""
    chance = random.Random(0)
    tags = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in "xy")]
    for _ in range(300):
        text = chance.choices(tags, k=9)
        spans = decode(text)
        starts = [place for place, tag in enumerate(text) if begins(text[place - 1] if place else "O", tag)]
        assert sorted(first for _, first, _ in spans) == starts
        covered = [place for _, first, last in spans for place in range(first, last)]
        assert sorted(covered) == [place for place, tag in enumerate(text) if tag != "O"]


def numbers(*texts):
    return torch.tensor([[TAGS.index(tag) if tag != "_" else -100 for tag in text.split()] for text in texts])


def test_counts_by_hand():
    """A right type with wrong ends is a miss and a false alarm; padding does not end or begin a span."""
    truth = numbers("B-PER I-PER O B-LOC", "B-LOC O O _", "B-PER _ I-PER O")
    guess = numbers("B-PER I-PER O B-PER", "B-LOC I-LOC O O", "B-PER O I-PER O")
    micro, macro, each = SpanF1(TAGS), SpanF1(TAGS, average="macro"), SpanF1(TAGS, average="none")
    for metric in (micro, macro, each):
        metric.update(guess, truth)
    assert micro.counts.tolist() == [[0, 1, 2], [2, 3, 2]]  # LOC, PER: hits, predicted, true
    assert micro.compute() == 2 * 2 / (4 + 4)
    assert each.compute() == {"LOC": 0.0, "PER": 0.8}
    assert macro.compute() == 0.4


@pytest.mark.parametrize("average", ["micro", "macro", "weighted"])
def test_any_world_and_any_layout(average):
    """One to four ranks agree to the bit; scores may have the tags before or after the tokens."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 5, (41, 12), generator=generator)
    scores = torch.nn.functional.one_hot(truth, 5).float() * 1.5 + torch.rand(41, 12, 5, generator=generator) * 2
    one = same_everywhere(lambda: SpanF1(TAGS, average=average), scores, truth)
    assert 0 < one < 1
    assert same_everywhere(lambda: SpanF1(TAGS, average=average), scores.movedim(2, 1), truth) == one
    assert same_everywhere(lambda: SpanF1(TAGS, average=average), scores.argmax(2), truth) == one


def test_perfect_and_nothing():
    """All right is 1, no spans at all is 0."""
    perfect = SpanF1(TAGS)
    assert perfect.compute() == 0.0
    perfect.update(numbers("B-PER I-PER"), numbers("B-PER I-PER"))
    assert perfect.compute() == 1.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SpanF1(["O", "PER"]), "PER"),
        (lambda: SpanF1(["O", "B-"]), "B-"),
        (lambda: SpanF1(["O"]), "at least one tag"),
        (lambda: SpanF1(["O", "B-x", "B-x"]), "different tags"),
        (lambda: SpanF1(TAGS, average="mean"), "expected average"),
        (lambda: SpanF1(TAGS).update(torch.zeros(2, 3), torch.zeros(2, 3)), "tag scores or tag numbers"),
        (lambda: SpanF1(TAGS).update(torch.tensor([1]), torch.tensor([1])), r"\(n, length\)"),
        (lambda: SpanF1(TAGS, dim=0), "dim=0"),
        (lambda: SpanF1(TAGS).update(torch.zeros(2, 3, 7), torch.zeros(2, 3)), "scores of 5 tags"),
        (lambda: SpanF1(TAGS, dim=1).update(torch.zeros(2, 3, 5), torch.zeros(2, 3)), "with dim=1"),
        (lambda: SpanF1(TAGS).update(torch.tensor([[9]]), torch.tensor([[1]])), "0..4, got 9"),
    ],
)
def test_wrong_tags_and_shapes_are_refused(make, words):
    """A tag that means nothing is an error, not an O."""
    with pytest.raises(ConfigError, match=words):
        make()


def test_as_many_tags_as_tokens():
    """Scores that could be read both ways are refused; `dim` says which is meant, and a perfect prediction scores 1."""
    truth = torch.tensor([[1, 2, 0, 3, 4], [0, 1, 2, 2, 0]])
    assert truth.shape[1] == len(TAGS)
    scores = torch.nn.functional.one_hot(truth, len(TAGS)).float()
    for dim, given in ((-1, scores), (2, scores), (1, scores.movedim(2, 1))):
        perfect = SpanF1(TAGS, dim=dim)
        perfect.update(given, truth)
        assert perfect.compute() == 1.0
    with pytest.raises(ConfigError, match=r"dimension 1 or 2.*SpanF1\(..., dim=-1\)"):
        SpanF1(TAGS).update(scores, truth)


def test_nan_is_no_tag():
    """A token with NaN among its scores continues no span and begins none."""
    truth = torch.tensor([[1, 2, 2, 0]])
    scores = torch.nn.functional.one_hot(truth, len(TAGS)).float()
    scores[0, 1, 4] = float("nan")
    found = SpanF1(["B-x", "B-PER", "I-PER", "B-LOC", "I-LOC"])  # 0, which argmax would have said, begins a span here
    found.update(scores, truth)
    assert found.counts.sum(axis=0).tolist() == [1, 3, 2]  # the span is cut in two, and "B-x" of token 3 is found
