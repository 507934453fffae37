"""Where rows of tokens come from: a table of pieces, made once from the ends of documents (no torch).

A piece is a run of targets within one document; each target's input is the token before it. Documents longer than a row
are cut; what is left of them and the shorter ones share rows. The table of a large file is kept in the cache, and
mapped by everybody who needs it.
"""

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from unisono.data.files.cache import cache_key, cached_directory
from unisono.data.files.identity import place_on_machine
from unisono.data.tokens.mapped import Mapped
from unisono.determinism.keyed_words import keyed_words
from unisono.determinism.seeding import mix
from unisono.environment import default_cache
from unisono.errors import DataError

Indices = npt.NDArray[np.int64]

_FORMAT_VERSION = 1
_KEPT_FROM = 1 << 24
"""Tokens from which on a table is kept: below, making it takes less than 0.2 s."""
_READ_TOKENS = 1 << 24  # at a time


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pieces:
    """The pieces of all rows."""

    starts: Indices  #: int64 (n,): the first target of each piece, longest pieces first.
    #: int64 (length + 2,): pieces longer than k come before number ``first_of_length[k]``; a last 0.
    first_of_length: Indices
    slots: Indices  #: int64 (n,): the pieces in the order of the rows.
    offsets: Indices  #: int64 (rows + 1,): row r has the slots ``offsets[r]:offsets[r + 1]``.

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(cls, documents: Indices, length: int) -> Self:
        """Cut documents into pieces and put these into rows of `length`.

        Args:
            documents: int64 (n, 2): first target and how many.
            length: Tokens of a row.
        """
        begins, sizes = documents[:, 0], documents[:, 1]
        per_document = -(-sizes // length)
        index = np.repeat(np.arange(len(documents)), per_document)
        part = np.arange(len(index)) - np.repeat(np.cumsum(per_document) - per_document, per_document)
        starts, lengths = begins[index] + part * length, np.minimum(sizes[index] - part * length, length)
        order = np.argsort(-lengths, kind="stable")
        starts, lengths = starts[order], lengths[order]
        num_full = int(np.count_nonzero(lengths == length))
        more, row_of = best_fit(lengths[num_full:], length)
        rows = np.concatenate([np.arange(num_full), num_full + row_of])
        return cls(
            starts=starts,
            first_of_length=np.searchsorted(-lengths, -np.arange(length + 2), side="left").astype(np.int64),
            slots=np.argsort(rows, kind="stable").astype(np.int64),
            offsets=np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_full + more))]).astype(np.int64),
        )

    def lengths(self, pieces: Indices) -> Indices:
        """Return the tokens of each piece."""
        # Rising from the other side: how many lengths begin at or before this piece.
        rising = self.first_of_length[::-1]
        found: Indices = (len(rising) - np.searchsorted(rising, pieces, side="right")).astype(np.int64)
        return found

    def of_rows(self, rows: Indices, key: int | None) -> tuple[Indices, Indices]:
        """Return the pieces of some rows one after another, and how many each row has.

        Args:
            rows: int64 (n,).
            key: Of an epoch: pieces of equal length change places, by a rotation that the key and the length decide. So
                other documents share a row in every epoch, and each still comes once. None: as they lie.
        """
        counts = self.offsets[rows + 1] - self.offsets[rows]
        ends = np.cumsum(counts)
        within = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
        pieces = self.slots[np.repeat(self.offsets[rows], counts) + within]
        if key is not None:
            lengths = self.lengths(pieces)
            begin = self.first_of_length[lengths]
            count = self.first_of_length[lengths - 1] - begin
            turn = (keyed_words(key, lengths.astype(np.uint64)) % count.astype(np.uint64)).astype(np.int64)
            pieces = begin + (pieces - begin + turn) % count
        return pieces, counts


def best_fit(lengths: Indices, capacity: int) -> tuple[int, Indices]:
    """Return a number of rows, and the row of each piece: each goes where it leaves the least room.

    Args:
        lengths: int64 (n,), longest first, each from 1 to `capacity`.
        capacity: Tokens of a row.

    Returns:
        The rows, and int64 (n,) numbers of them. A quarter of a microsecond a piece.

    Source: best-fit decreasing (Johnson, "Near-optimal bin packing algorithms", 1973), for documents as in Ding et al.,
    "Fewer truncations improve language modeling", arXiv 2404.10830.
    """
    rows_with: list[list[int]] = [[] for _ in range(capacity + 1)]  # by the room that is left
    is_there = 0  # bit r: some row has room for exactly r
    row_of, rows = [], 0
    for length in lengths.tolist():
        fitting = is_there >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = rows_with[room].pop()
            if not rows_with[room]:
                is_there ^= 1 << room
        else:
            room, row, rows = capacity, rows, rows + 1
        left = room - length
        if left:
            rows_with[left].append(row)
            is_there |= 1 << left
        row_of.append(row)
    return rows, np.array(row_of, dtype=np.int64)


def epoch_key(seed: int, epoch: int) -> int:
    """Return the key under which the pieces of an epoch change places."""
    return mix(seed, "pack", epoch)


def cut_plainly(mapped: Mapped, length: int) -> Pieces:
    """Return rows of consecutive targets, each token of each file once but for its first; the last may be short."""
    ends = mapped.begins[1:]
    return Pieces.of(np.stack([mapped.begins[:-1] + 1, ends - mapped.begins[:-1] - 1], axis=1), length)


def cut_documents(mapped: Mapped, length: int, end_of_text: int, cache: Path | None) -> Pieces:
    """Return rows of documents, which end with `end_of_text` or with their file; made once, if that takes long.

    Raises:
        DataError: No document ends so, or the cache cannot be written.
    """
    if len(mapped) < _KEPT_FROM:
        return Pieces.of(find_documents(mapped, end_of_text), length)
    names = [field.name for field in fields(Pieces)]

    def build(directory: Path) -> None:
        made = Pieces.of(find_documents(mapped, end_of_text), length)
        for name in names:
            np.save(directory / f"{name}.npy", getattr(made, name))

    held = "\n".join(f"{path} {place_on_machine(path)}" for path in mapped.paths)
    settings: dict[str, str | int | None] = {
        "length": length, "end_of_text": end_of_text, "dtype": mapped.dtype.str
    }  # fmt: skip
    digest = hashlib.sha256(held.encode("utf-8", "surrogateescape")).hexdigest()
    key = cache_key(source_sha256=digest, settings=settings, format_version=_FORMAT_VERSION)
    entry = cached_directory((cache or default_cache({})) / "tokens" / f"rows-{key}", build)
    arrays: dict[str, Any] = {name: np.load(entry / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in names}
    return Pieces(**arrays)


def find_documents(mapped: Mapped, end_of_text: int) -> Indices:
    """Return first place and size of each document, int64 (n, 2), its end-of-text token counted; no empty ones."""
    found, ends_seen = [], 0
    for number, begin in enumerate(mapped.begins[:-1].tolist()):
        tokens = mapped.sequence(number)
        ends = np.concatenate([
            at + 1 + np.flatnonzero(tokens[at : at + _READ_TOKENS] == end_of_text)
            for at in range(0, len(tokens), _READ_TOKENS)
        ])  # fmt: skip
        ends_seen += len(ends)
        starts, stops = np.concatenate([[0], ends]), np.concatenate([ends, [len(tokens)]])
        is_empty = stops - starts <= np.concatenate([np.ones(len(ends), np.int64), [0]])
        found.append(np.stack([begin + starts, stops - starts], axis=1)[~is_empty])
    if not ends_seen:
        raise DataError(
            f"{mapped.paths[0]}: expected documents that end with token {end_of_text}, found none in {len(mapped):,} "
            "tokens. Hint: end_of_text= is the number between documents; crops() and rows() need none."
        )
    documents: Indices = np.concatenate(found).astype(np.int64)
    if not len(documents):
        raise DataError(f"{mapped.paths[0]}: expected a document with tokens, found empty ones only.")
    return documents
