"""Samples made of a file of tokens: random crops, and rows of consecutive tokens or of whole documents.

A micro-batch is gathered by NumPy at once, and is a function of (seed, epoch, sample numbers) alone.
"""

from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.data.tokens.mapped import Mapped
from unisono.data.tokens.pieces import cut_documents, cut_plainly, epoch_key
from unisono.determinism.keyed_words import keyed_places
from unisono.determinism.seeding import mix
from unisono.errors import DataError

Indices = npt.NDArray[np.int64]

IGNORED = -100
"""The target of a place that has none, as torch's `cross_entropy` takes it."""


class PackedTokens(NamedTuple):
    """Rows that documents share, (n, length) each."""

    tokens: Tensor  #: int64; 0 behind a row's last document.
    #: int64: which document of its row a place belongs to, from 0; the places behind the last have one more.
    segments: Tensor
    positions: Tensor  #: int64: how far a place is from the begin of its piece of a document.

    def attention_mask(self) -> Tensor:
        """Return where a place may look, bool (n, 1, length, length): at itself, and back within its document."""
        length = self.segments.shape[1]
        is_same = self.segments[:, None, :, None] == self.segments[:, None, None, :]
        return is_same & torch.ones(length, length, dtype=torch.bool, device=is_same.device).tril()


@final
class Crops:
    """Crops at random places: (tokens, the tokens after them), int64 (n, length) each; made by `TokenFile.crops`.

    Sample i of epoch e begins where the key (seed, e, i) says, every place of a file with the same chance. Fetched one
    by one (in a mixture, with a transform or collate function), the place comes from torch's generator, which the
    loader has keyed.
    """

    is_keyed_singly = True

    def __init__(self, mapped: Mapped, length: int, samples: int | None, content: str) -> None:
        sizes = np.diff(mapped.begins)
        if (least := int(sizes.min())) <= length:
            path = mapped.paths[int(sizes.argmin())]
            raise DataError(
                f"{path}: expected more than {length:,} tokens, for a row and the token after it, found {least:,}. "
                "Hint: a smaller length, or leave this file out."
            )
        self._mapped, self._length, self._content = mapped, length, content
        self._crops_before: Indices = np.concatenate([[0], np.cumsum(sizes - length)]).astype(np.int64)
        self._samples = samples or max(1, len(mapped) // length)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        key = int(torch.randint(1 << 62, ()))
        x, y = self.fetch_keyed(_numbered(index, len(self)), seed=key, epoch=0)
        return x[0], y[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return Crops, (self._mapped, self._length, self._samples, self._content)

    @property
    def fingerprint(self) -> str:
        """What the score says of these samples."""
        return f"{self._content} length={self._length} crops"

    def fetch_micro_batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return crops for an evaluation, always the same."""
        return self.fetch_keyed(indices, seed=0, epoch=-1)

    def fetch_keyed(self, indices: Indices, *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """See `unisono.data.datasets.KeyedDataset`."""
        drawn = keyed_places(mix(seed, "crop", epoch), indices, int(self._crops_before[-1]))
        if len(self._crops_before) > 2:  # places at which a file ends begin no crop
            files = np.searchsorted(self._crops_before, drawn, side="right") - 1
            drawn = drawn - self._crops_before[files] + self._mapped.begins[files]
        rows = self._mapped.rows(drawn, self._length + 1)
        return torch.from_numpy(rows[:, :-1].astype(np.int64)), torch.from_numpy(rows[:, 1:].astype(np.int64))


@final
class Rows:
    """Rows of a table of pieces: (x, targets); made by `TokenFile.rows` and `TokenFile.packed`.

    x is int64 (n, length), or `PackedTokens` where documents share rows. Targets are int64 (n, length), `IGNORED`
    where there is none. Fetched one by one, the same documents share a row in every epoch.
    """

    is_keyed_singly = True

    def __init__(
        self, mapped: Mapped, length: int, end_of_text: int | None, content: str, cache: Path | None = None
    ) -> None:
        self._mapped, self._length, self._end, self._content, self._cache = mapped, length, end_of_text, content, cache
        if end_of_text is None:
            self._pieces = cut_plainly(mapped, length)
        else:
            self._pieces = cut_documents(mapped, length, end_of_text, cache)

    def __len__(self) -> int:
        return len(self._pieces)

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self._mapped, self._length, self._end, self._content, self._cache)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        x, y = self.fetch_micro_batch(_numbered(index, len(self)))
        return PackedTokens(*(part[0] for part in x)) if isinstance(x, PackedTokens) else x[0], y[0]

    @property
    def fingerprint(self) -> str:
        """What the score says of these samples."""
        kind = "rows" if self._end is None else f"packed end_of_text={self._end}"
        return f"{self._content} length={self._length} {kind}"

    def fetch_micro_batch(self, indices: Indices) -> tuple[Tensor | PackedTokens, Tensor]:
        """Return the rows as they lie; see `unisono.data.datasets.BatchedDataset`."""
        return self._fetch(indices, None)

    def fetch_keyed(self, indices: Indices, *, seed: int, epoch: int) -> tuple[Tensor | PackedTokens, Tensor]:
        """See `unisono.data.datasets.KeyedDataset`; where documents share rows, each epoch puts others together."""
        return self._fetch(indices, None if self._end is None else epoch_key(seed, epoch))

    def _fetch(self, indices: Indices, key: int | None) -> tuple[Tensor | PackedTokens, Tensor]:
        shape = len(indices), self._length
        pieces, counts = self._pieces.of_rows(indices, key)
        lengths, starts = self._pieces.lengths(pieces), self._pieces.starts[pieces]
        ends = np.cumsum(lengths)
        before, run = ends - lengths, np.arange(int(ends[-1]))
        first_of_row = np.repeat(np.cumsum(counts) - counts, counts)
        row = np.repeat(np.arange(len(indices)), counts)
        place = run + np.repeat(row * self._length - before[first_of_row], lengths)
        given = self._mapped.at(run + np.repeat(starts - before, lengths)).astype(np.int64)
        tokens, targets = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        targets.reshape(-1)[place] = given
        heads = self._mapped.at(np.maximum(starts - 1, 0))
        given[1:] = given[:-1].copy()  # an input is the target before it, within a piece
        given[before] = heads
        tokens.reshape(-1)[place] = given
        if self._end is None:
            return torch.from_numpy(tokens), torch.from_numpy(targets)
        # Before the first document of a file stands no end of another: what every document begins with is put there.
        is_first = np.isin(starts, self._mapped.begins)
        tokens.reshape(-1)[place[before[is_first]]] = self._end
        segments, positions = np.empty(shape, np.int64), np.zeros(shape, np.int64)
        segments[:] = counts[:, None]
        segments.reshape(-1)[place] = np.repeat(np.arange(len(pieces)) - first_of_row, lengths)
        positions.reshape(-1)[place] = run - np.repeat(before, lengths)
        packed = PackedTokens(*map(torch.from_numpy, (tokens, segments, positions)))
        return packed, torch.from_numpy(targets)


def _numbered(index: int, count: int) -> Indices:
    """Return a sample's number, counted from the end where it is negative; Python ends a `for` by the `IndexError`."""
    if not -count <= index < count:
        raise IndexError(f"expected the number of one of {count:,} samples, got {index}.")
    return np.array([index % count])
