"""Texts as a data set: from a token store to micro-batches, packed or padded, with lengths for batching.

A micro-batch is built from the texts' own tokens: *packed*, one after another with short gaps, or *padded* to its own
longest text. Pads are number 0, which never stands for a word.
"""

from typing import Any, Literal, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.data.lengths import evaluation_order
from unisono.data.sampler import Indices
from unisono.data.sets.text import PAD as PAD
from unisono.data.sets.text import TokenStore
from unisono.options.quantities import BATCHES, TOKENS


class PackedTexts(NamedTuple):
    """Texts one after another."""

    tokens: Tensor  #: int64 (places,): each text's tokens, then pads up to its place's end.
    lengths: Tensor  #: int64 (n,): tokens of each text, pads not counted.


class PaddedTexts(NamedTuple):
    """Texts side by side."""

    tokens: Tensor  #: int64 (n, longest): one text a row, then pads.
    lengths: Tensor  #: int64 (n,).


def pack(texts: list[npt.NDArray[np.int32]], *, align: int = 49, least: int = 147, behind: int = 34) -> PackedTexts:
    """Put texts one after another, each in a place of a multiple of `align` tokens, at least `least`.

    At least `behind` of them are pads behind the text: a window that reaches its last words may reach beyond.
    """
    lengths = np.array([len(tokens) for tokens in texts], dtype=np.int64)
    places = np.maximum(-(-(lengths + behind) // align) * align, least)
    packed = np.full(int(places.sum()), PAD, dtype=np.int64)
    for start, tokens in zip(np.cumsum(places) - places, texts, strict=True):
        packed[start : start + len(tokens)] = tokens
    return PackedTexts(torch.from_numpy(packed), torch.from_numpy(lengths))


def pad(texts: list[npt.NDArray[np.int32]], *, least: int = 1) -> PaddedTexts:
    """Put texts side by side, padded to the longest of them, at least to `least` tokens."""
    lengths = np.array([len(tokens) for tokens in texts], dtype=np.int64)
    padded = np.full((len(texts), max(least, int(lengths.max()))), PAD, dtype=np.int64)
    for row, tokens in zip(padded, texts, strict=True):
        row[: len(tokens)] = tokens
    return PaddedTexts(torch.from_numpy(padded), torch.from_numpy(lengths))


@final
class Texts:
    """Some texts of a token store as a data set of (tokens, label); micro-batches are (`PackedTexts`, labels).

    Args:
        store: The tokens.
        chosen: int64 (n,): which texts, in which order; all where None.
        max_length: Tokens beyond it are cut off; None cuts nothing.
        layout: ``packed`` or ``padded``.
        length_pool: Batches whose texts are sorted by length together (see `unisono.data.lengths`); 0 keeps the
            plain random order. Decides which texts share a batch, so it belongs to the score.
        content: What identifies the tokens, for the score; see `fingerprint`.

    Raises:
        ConfigError: ``max_length < 1`` or a negative `length_pool`.
    """

    def __init__(
        self,
        store: TokenStore,
        chosen: Indices | None = None,
        *,
        max_length: int | None = None,
        layout: Literal["packed", "padded"] = "packed",
        length_pool: int = 0,
        content: str | None = None,
    ) -> None:
        max_length, length_pool = TOKENS.maybe("max_length", max_length), BATCHES.take("length_pool", length_pool)
        self.store = store
        self.chosen = np.arange(len(store)) if chosen is None else chosen
        self.max_length = max_length
        self.layout = layout
        self.length_pool = length_pool
        self._content = content

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int32], int]:
        tokens, label = self.store[int(self.chosen[index])]
        return tokens[: self.max_length], label

    def fetch_micro_batch(self, indices: Indices) -> tuple[Any, Tensor]:
        """See `unisono.data.datasets.BatchedDataset`."""
        samples = [self[index] for index in indices.tolist()]
        texts = [tokens for tokens, _ in samples]
        labels = torch.tensor([label for _, label in samples])
        return (pack(texts) if self.layout == "packed" else pad(texts)), labels

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the tokens of each text, after truncation, int64 (n,)."""
        offsets = self.store.offsets
        lengths = offsets[self.chosen + 1] - offsets[self.chosen]
        return lengths if self.max_length is None else np.minimum(lengths, self.max_length)

    def truncated(self) -> dict[str, int]:
        """Return how much `max_length` cuts: the number of ``texts`` shortened and of ``tokens`` lost."""
        if self.max_length is None:
            return {"texts": 0, "tokens": 0}
        offsets = self.store.offsets
        over = offsets[self.chosen + 1] - offsets[self.chosen] - self.max_length
        return {"texts": int((over > 0).sum()), "tokens": int(over[over > 0].sum())}

    def for_evaluation(self, batch_size: int = 256) -> "Texts":
        """Return the same texts in batches of similar length, in an order that shares them out evenly."""
        order = evaluation_order(self.lengths(), batch_size)
        return Texts(
            self.store, self.chosen[order], max_length=self.max_length, layout=self.layout, content=self._content
        )

    @property
    def fingerprint(self) -> str:
        """What the score says about these texts beside their number."""
        return f"{self._content} max_length={self.max_length} length_pool={self.length_pool}"
