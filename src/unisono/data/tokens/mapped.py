"""Files of token numbers, mapped read-only, as one long sequence (no torch).

Raw numbers (``.bin``, as nanoGPT writes them; a header of llm.c is recognised) or NumPy's ``.npy``. What is wrong with
a file is said when it is opened; what can only be seen while reading, when it is read: a number outside the vocabulary,
a file that somebody writes to. It pickles as its paths.
"""

import glob
import mmap
import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from unisono.data.files.identity import sampled_identity, whole_identity
from unisono.errors import ConfigError, DataError

Tokens = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
Given = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_LLMC_MAGIC, _LLMC_HEADER_BYTES = 20240520, 1024
_RAW = ("uint8", "uint16", "uint32", "int32", "int64")
_LOOKED_AT, _ENOUGH = 4096, 64


@final
class _Handle(FileIO):
    """An open file that is closed, without a warning, when nobody needs it any more."""

    def __del__(self) -> None:
        self.close()


class _File(NamedTuple):
    """An open file: its bytes and time of change when it was opened, and its tokens."""

    path: Path
    handle: _Handle
    size: int
    changed_ns: int
    first_byte: int
    tokens: Tokens


@final
class Mapped:
    """The tokens of some files, one after another.

    Args:
        paths: As `TokenFile` takes them.
        dtype: Of raw numbers; None: uint16, if that is what the first of them look like.
        vocabulary: Numbers from there on are refused where they are read; None: all are taken.
        expected: Size and time of change of each file, where it has been open before.

    Raises:
        ConfigError: `dtype` is none of those that raw files have, or there is no path.
        DataError: A file is missing, empty, cut short, of other numbers, or not as it was.
    """

    def __init__(
        self, paths: Given, dtype: Any = None, vocabulary: int | None = None, expected: tuple[Any, ...] = ()
    ) -> None:
        name = getattr(dtype, "__name__", str(dtype))  # also np.uint16
        if dtype is not None and name not in _RAW:
            raise ConfigError(f"expected dtype as one of {', '.join(_RAW)}, got {dtype!r}.")
        self._dtype, self.vocabulary = None if dtype is None else name, vocabulary
        self.paths = _paths_of(paths)
        self._files = [_open(path, self._dtype) for path in self.paths]
        self._windows: dict[tuple[int, int], Tokens] = {}
        kinds = {file.tokens.dtype: file.path for file in reversed(self._files)}
        if len(kinds) > 1:
            told = " and ".join(f"{kind} in {path}" for kind, path in reversed(kinds.items()))
            raise DataError(f"expected files of one type of numbers, got {told}. Hint: one TokenFile for each type.")
        for file, was in zip(self._files, expected, strict=False):
            if (file.size, file.changed_ns) != was:
                raise DataError(f"{file.path}: expected the file that this run has begun with. Hint: start it again.")
        self.dtype = next(iter(kinds))
        sizes = [len(file.tokens) for file in self._files]
        self.begins: Indices = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self.begins[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        was = tuple((file.size, file.changed_ns) for file in self._files)
        return Mapped, (self.paths, self._dtype, self.vocabulary, was)

    def identities(self, *, whole: bool = False, cache: Path | None = None) -> list[str]:
        """Return what identifies the content of each file."""
        return [whole_identity(path, cache) if whole else sampled_identity(path) for path in self.paths]

    def file_of(self, places: Indices) -> Indices:
        """Return the number of the file in which each place of the whole sequence lies."""
        return (np.searchsorted(self.begins, places, side="right") - 1).astype(np.int64)

    def rows(self, starts: Indices, length: int) -> Tokens:
        """Return `length` tokens from each start on, (n, length); each row lies within one file."""
        if len(self._files) == 1:
            return self._rows(0, starts, length)
        files = self.file_of(starts)
        found = np.empty((len(starts), length), self.dtype)
        for number in np.unique(files).tolist():
            chosen = files == number
            found[chosen] = self._rows(number, starts[chosen] - self.begins[number], length)
        return found

    def at(self, places: Indices) -> Tokens:
        """Return the tokens at places of the whole sequence, (n,)."""
        return self.rows(places, 1)[:, 0]

    def sequence(self, number: int) -> Tokens:
        """Return all tokens of one file, a read-only view; what is done with it sees no check."""
        self._check(self._files[number])
        return self._files[number].tokens

    def _rows(self, number: int, starts: Indices, length: int) -> Tokens:
        file = self._files[number]
        self._check(file)
        windows = self._windows.get((number, length))
        if windows is None:
            windows = self._windows[number, length] = sliding_window_view(file.tokens, length)
        found: Tokens = windows[starts]
        if self.vocabulary is not None and found.size and (found.max() >= self.vocabulary or found.min() < 0):
            self._refuse(file, starts, found)
        return found

    def _check(self, file: _File) -> None:
        """Refuse a file that is written to meanwhile; reading pages that it has lost would end the process."""
        held = os.fstat(file.handle.fileno())
        if held.st_size >= file.size and held.st_mtime_ns == file.changed_ns:
            return
        found = f"{held.st_size:,}" if held.st_size != file.size else "that it was written to"
        raise DataError(
            f"{file.path}: expected the {file.size:,} bytes that it had when it was opened, found {found}. "
            "Hint: put it back; write another file under another name while a run reads this one."
        )

    def _refuse(self, file: _File, starts: Indices, found: Tokens) -> None:
        row, column = np.argwhere((found >= self.vocabulary) | (found < 0))[0].tolist()
        place = int(starts[row]) + column
        raise DataError(
            f"{file.path}: expected tokens from 0 to {self.vocabulary - 1 if self.vocabulary else 0}, found "
            f"{found[row, column]} as token {place:,} (byte {file.first_byte + place * self.dtype.itemsize:,}). "
            f"Hint: is vocabulary= that of the tokeniser that wrote it, and dtype= (now {self.dtype.name}) right?"
        )


def _paths_of(given: Given) -> list[Path]:
    """Return the files that are meant; those that a pattern gives are sorted."""
    several: Any = [given] if isinstance(given, str | os.PathLike) else given
    if not isinstance(several, list | tuple) or not all(isinstance(one, str | os.PathLike) for one in several):
        raise ConfigError(f"expected the path of a file of tokens, or a list of paths, got {type(given).__name__}.")
    found: list[Path] = []
    for one in several:
        spelled = os.fspath(one)
        is_pattern = any(sign in spelled for sign in "*?[") and not Path(spelled).exists()
        held = sorted(glob.glob(spelled)) if is_pattern else [spelled]  # noqa: PTH207 - a pattern may be absolute
        if not held:
            raise DataError(f"{spelled}: expected a pattern that fits a file, found none. Hint: check the path.")
        found += [Path(path).absolute() for path in held]
    if not found:
        raise DataError("expected a file of tokens, got an empty list. Hint: check what makes the list.")
    return found


def _open(path: Path, asked: str | None) -> _File:
    """Map one file, read-only; raw numbers are of the type that is asked for."""
    raw = np.dtype(asked or "uint16").newbyteorder("<")
    try:
        handle = _Handle(path)  # stays open: `_check` asks for its size
        held = os.fstat(handle.fileno())
        if held.st_size == 0:
            raise DataError(f"{path}: expected tokens, found an empty file. Hint: write it again.")
        pages = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DataError(f"{path}: expected a file of tokens, found: {error.strerror}. Hint: check the path.") from None
    first, dtype = _after_npy_header(path) if path.suffix == ".npy" else _after_raw_header(path, pages, raw)
    size = held.st_size
    if (size - first) % dtype.itemsize:
        raise DataError(
            f"{path}: expected whole numbers of {dtype.itemsize} bytes ({dtype.name}), found {size:,} bytes. "
            "Hint: it is cut short, or dtype= is not that of the file."
        )
    count = (size - first) // dtype.itemsize
    tokens = np.frombuffer(pages, dtype, count, first)
    if asked is None and first == 0:
        _check_width(path, tokens[:_LOOKED_AT])
    return _File(path, handle, size, held.st_mtime_ns, first, tokens)


def _check_width(path: Path, first: Tokens) -> None:
    """Refuse what looks like wider numbers than those that are read: small ones have zeros in their upper halves."""
    if len(first) < _ENOUGH or first[1::2].any() or not first.any():
        return
    wider = "uint32" if first[2::4].any() else "int64"
    raise DataError(
        f"{path}: every second of its first {len(first):,} numbers is 0, as where a file of {wider} is read as "
        f"{first.dtype.name}. Hint: dtype={wider!r}; or dtype={first.dtype.name!r}, if they are meant."
    )


def _after_raw_header(path: Path, pages: mmap.mmap, raw: np.dtype[Any]) -> tuple[int, np.dtype[Any]]:
    """Return where the numbers of a raw file begin, and their type: as llm.c's header says, where there is one."""
    if len(pages) < _LLMC_HEADER_BYTES:
        return 0, raw
    magic, version, count = np.frombuffer(pages, "<i4", 3).tolist()
    if magic != _LLMC_MAGIC or version != 1:
        return 0, raw
    if (held := (len(pages) - _LLMC_HEADER_BYTES) // 2) != count:
        raise DataError(
            f"{path}: expected the {count:,} tokens that its header tells, found {held:,}. Hint: write it again."
        )
    return _LLMC_HEADER_BYTES, np.dtype("<u2")


def _after_npy_header(path: Path) -> tuple[int, np.dtype[Any]]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        told = str(error).partition("\n")[0]
        raise DataError(f"{path}: expected an array of NumPy's, found: {told}. Hint: write it again.") from None
    if not isinstance(array, np.memmap) or array.ndim != 1 or array.dtype.kind not in "iu":
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else "several arrays"
        raise DataError(
            f"{path}: expected one flat array of whole numbers, found {found}. Hint: np.save(path, tokens.ravel())."
        )
    return int(array.offset), array.dtype
