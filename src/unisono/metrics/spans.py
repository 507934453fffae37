"""Spans of tags: F1 over named entities and the like, as CoNLL counts them."""

from collections import Counter
from collections.abc import Sequence
from typing import final

from torch import Tensor

from unisono.errors import ConfigError
from unisono.metrics.base import Value, check_dim, class_dim
from unisono.metrics.labels import Average, CountTable, averaged, check_average, ratio

Span = tuple[str, int, int]
"""Type, first token, one past the last token."""

_NO_TAG = -(1 << 40)  # what a token with NaN among its scores is said to be; no target has this number


def decode(tags: Sequence[str]) -> set[Span]:
    """Return the spans of one sequence of tags ``O``, ``B-x``, ``I-x``, ``E-x``, ``S-x``.

    Lenient, as CoNLL's evaluation: a span also begins at an ``I-x`` or ``E-x`` that continues nothing of type x, and
    ends where its type changes. So BIO, IO and BIOES are read alike.

    Example:
        >>> sorted(decode(["B-PER", "I-PER", "O", "I-LOC"]))
        [('LOC', 3, 4), ('PER', 0, 2)]

    Source: Tjong Kim Sang and De Meulder, CoNLL-2003 shared task; the rules of its ``conlleval``.
    """
    spans: set[Span] = set()
    kind, first = "", 0  # of the open span; "" where none is open
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if kind and (prefix in ("O", "B", "S") or name != kind):
            spans.add((kind, first, place))
            kind = ""
        if prefix != "O" and not kind:
            kind, first = name, place
        if kind and prefix in ("E", "S"):
            spans.add((kind, first, place + 1))
            kind = ""
    return spans


@final
class SpanF1(CountTable):
    """F1 over exactly matching spans: same type, same first and last token, in the same sequence.

    Outputs are scores (n, tags, length) or (n, length, tags), or tags (n, length) as integers; targets int64
    (n, length). A token whose scores hold NaN is tagged ``O``.

    Args:
        tags: The name of each tag number: ``["O", "B-PER", "I-PER", ...]``.
        average: ``micro`` (CoNLL's), ``macro``, ``weighted`` or ``none`` over the types of span.
        ignore_index: Tokens with this target are taken out of their sequence (padding, word pieces).
        dim: Of the tags in the scores: 1, or -1. None: whichever fits the targets; scores with as many tags as tokens
            fit both and are refused, so say it where that can happen.

    Raises:
        ConfigError: Tags of another form, another `dim`; in `update`: other shapes, or scores that could be read both
            ways.
    """

    def __init__(
        self, tags: Sequence[str], *, average: Average = "micro", ignore_index: int = -100, dim: int | None = None
    ) -> None:
        check_dim(dim)
        wrong = [tag for tag in tags if tag != "O" and (tag[:2] not in ("B-", "I-", "E-", "S-") or len(tag) < 3)]
        if wrong or len(set(tags)) != len(tags):
            raise ConfigError(f"expected different tags O, B-x, I-x, E-x or S-x, got {wrong or list(tags)}.")
        check_average(average)
        self._tags, self._average, self._ignore_index, self._dim = list(tags), average, ignore_index, dim
        self._kinds = sorted({tag[2:] for tag in tags if tag != "O"})
        if not self._kinds:
            raise ConfigError(f"expected at least one tag besides O, got {list(tags)}.")
        super().__init__(len(self._kinds), 3)  # hits, predicted, true

    def update(self, output: Tensor, target: Tensor) -> None:
        if target.ndim != 2:
            raise ConfigError(f"expected targets (n, length), got {tuple(target.shape)}.")
        if output.ndim == 3:
            output = self._tags_of(output, target)
        if output.shape != target.shape or output.is_floating_point():
            raise ConfigError(
                f"expected tag scores or tag numbers for targets {tuple(target.shape)}, "
                f"got {tuple(output.shape)} of {output.dtype}."
            )
        counts: Counter[tuple[str, int]] = Counter()
        for guesses, truths in zip(output.tolist(), target.tolist(), strict=True):
            kept = [(guess, truth) for guess, truth in zip(guesses, truths, strict=True) if truth != self._ignore_index]
            said, true = (decode([self._name(row[side]) for row in kept]) for side in (0, 1))
            for column, spans in enumerate((said & true, said, true)):
                counts.update((kind, column) for kind, _, _ in spans)
        for (kind, column), count in counts.items():
            self._table[self._kinds.index(kind), column] += count

    def compute(self) -> Value:
        """See `Metric.compute`; 0 where there is no span."""
        if self._average == "micro":
            hits, said, true = self.counts.sum(axis=0).tolist()
            return float(ratio(2 * hits, said + true))
        rows = self.counts.tolist()
        ratios = [ratio(2 * hits, said + true) for hits, said, true in rows]
        return averaged(self._kinds, ratios, [true for _, _, true in rows], self._average)

    def _tags_of(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the tag of the largest score of each token, int64 (n, length); `_NO_TAG` where one is NaN."""
        dim = class_dim(scores, target, self._dim, "SpanF1")
        if scores.shape[dim] != len(self._tags):
            raise ConfigError(
                f"expected scores of {len(self._tags)} tags along dimension {dim}, got {tuple(scores.shape)}."
            )
        tags: Tensor = scores.argmax(dim=dim).masked_fill(scores.isnan().any(dim=dim), _NO_TAG)
        return tags

    def _name(self, number: int) -> str:
        if number == _NO_TAG:
            return "O"
        if not 0 <= number < len(self._tags):
            raise ConfigError(f"expected tag numbers in 0..{len(self._tags) - 1}, got {number}.")
        return self._tags[number]
