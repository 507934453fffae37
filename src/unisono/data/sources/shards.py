"""`Shards`: samples in many files, read at any place by an index that is built once.

In: tar files in webdataset's layout, JSON lines, Parquet. Out: a map-style data set, whose default order shuffles the
shards and, within windows of some of them, the samples (`unisono.data.plans.windows`).
"""

import json
import os
import tarfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import numpy as np

from unisono.data.datasets import part_of
from unisono.data.lengths import Indices
from unisono.data.plans.windows import Windows
from unisono.data.sources.decoding import decode_fields
from unisono.data.sources.names import find_shards, kind_of, packing_of, short_names
from unisono.data.sources.parquet_records import open_parquet, row_of, scan_parquet
from unisono.data.sources.shard_cache import indexed, shard_identity
from unisono.data.sources.tar_records import read_tar
from unisono.environment import default_cache
from unisono.errors import ConfigError, DataError

T = TypeVar("T")
Decode = Callable[[Any], Any]

_UNREADABLE = (ValueError, OSError, EOFError, RecursionError, SyntaxError, tarfile.TarError)  # SyntaxError: Pillow's


class _Piece(NamedTuple):
    """What is shuffled as a whole: a file, or a row group of one."""

    path: Path  #: The shard.
    plain: Path  #: What is read: the shard, or what was unpacked of it.
    records: Indices | None  #: int64 (n, 2): begin and length of each sample; None for a row group.
    group: int  #: Number of the row group.


@final
class Shards:
    """Samples in tar files, JSON lines or Parquet files.

    Where each sample lies is found out once and kept below `cache`; a shard that changes is looked through again.
    Compressed shards (``.gz``, ``.zst``) are also unpacked there: they take their whole size on the disk, once. A
    Parquet file is read by row groups; each process keeps those of a window.

    Args:
        shards: A path, folder, pattern (``train-*.tar``, ``train-{000..127}.tar``), or a list of these. The order of
            the files numbers the samples.
        window: Shards (for Parquet: row groups) that are shuffled together, and so many files are open at once.
        decode: From a record to a sample. A record is a dictionary of bytes by field, with ``__key__`` (tar), the
            bytes of a line, or a dictionary of a row. None: fields by their endings (json, txt, cls, npy; images as
            uint8 tensors (channels, height, width)); a line as JSON; a row as it is.
        columns: Of Parquet files, those that are read; None: all.
        cache: Directory for indexes and what was unpacked; ``~/.cache/unisono`` where None.

    Raises:
        DataError: A shard is missing, damaged or cut short, or there is no sample.
        ConfigError: A setting does not fit the shards, or a package is missing that reads them.

    Example:
        >>> train_set = unisono.Shards("train-*.tar", window=8)  # doctest: +SKIP
        >>> loader = run.loader(train_set, batch_size=256, transform=lambda sample: (sample["jpg"], sample["cls"]))
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        window: int = 4,
        decode: Decode | None = None,
        columns: Sequence[str] | None = None,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        paths = find_shards(shards)
        self.kind = kind_of(paths[0])
        if columns is not None and self.kind != "parquet":
            raise ConfigError(f"expected columns= for Parquet files only, got shards as {paths[0]}. Hint: decode=.")
        self.columns = None if columns is None else list(columns)
        self._identities = {name: shard_identity(path) for name, path in zip(short_names(paths), paths, strict=True)}
        home = (default_cache() if cache is None else Path(cache)) / "shards"
        self._pieces, counts = self._look_through(paths, home)
        self._ends = np.cumsum(counts)
        if not len(counts) or not self._ends[-1]:
            raise DataError(f"expected at least one sample, found none in {len(paths)} shards, the first {paths[0]}.")
        self.plan = Windows(counts, window)
        self._decode = decode
        self._is_packed = any(packing_of(path) for path in paths)
        self._open = _Kept(2 * self.plan.window if self.kind != "parquet" else self.plan.window)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        at, row = part_of(index, self._ends)
        piece = self._pieces[at]
        try:
            return self._sample(self._row(at, row) if piece.records is None else self._bytes(at, row))
        except DataError:
            raise
        except Exception as error:
            if self._decode is None and isinstance(error, _UNREADABLE):
                place = self._place(at, row)
                raise DataError(f"{place}: expected a sample, found: {error}. Hint: correct it.") from error
            error.add_note(f"while decoding {self._place(at, row)}")
            raise

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What the score says: size and hash of blocks of every shard, by its name below the folder of all of them."""
        return {
            "kind": self.kind,
            **({"columns": self.columns} if self.columns is not None else {}),
            "shards": dict(self._identities),
        }

    def _sample(self, record: Any) -> Any:
        if self.kind == "tar":
            record = read_tar(record)
        if self._decode is not None:
            return self._decode(record)
        return decode_fields(record) if self.kind == "tar" else json.loads(record) if self.kind == "lines" else record

    def _look_through(self, paths: Sequence[Path], cache: Path) -> tuple[list[_Piece], list[int]]:
        pieces: list[_Piece] = []
        counts: list[int] = []
        for path, name in zip(paths, self._identities.values(), strict=True):
            if self.kind == "parquet":
                rows = scan_parquet(path, self.columns)
                pieces += [_Piece(path, path, None, group) for group in range(len(rows))]
                counts += rows
            else:
                plain, records = indexed(path, self.kind, name, cache)
                pieces.append(_Piece(path, plain, records, 0))
                counts.append(len(records))
        return pieces, counts

    def _bytes(self, at: int, row: int) -> bytes:
        piece = self._pieces[at]
        assert piece.records is not None
        begin, length = piece.records[row].tolist()
        raw = os.pread(self._open.get(at, lambda: _Descriptor(piece.plain)).number, length, begin)
        if len(raw) < length:
            raise DataError(
                f"{self._place(at, row)}: expected {length:,} bytes, found {len(raw):,}. "
                "Hint: the file has become shorter; write it again, and start again."
            )
        return raw

    def _row(self, at: int, row: int) -> dict[str, Any]:
        piece = self._pieces[at]

        def read() -> Any:
            opened = open_parquet(piece.path)  # without threads: a forked process has none of them
            try:
                return opened.read_row_group(piece.group, columns=self.columns, use_threads=False)
            except (OSError, ValueError) as error:
                raise DataError(
                    f"{piece.path}: expected row group {piece.group}, found: {error}. Hint: fetch or write it again."
                ) from error
            finally:
                opened.close()

        return row_of(self._open.get(at, read), row)

    def _place(self, at: int, row: int) -> str:
        piece = self._pieces[at]
        if piece.records is None:
            return f"{piece.path}, row {row} of row group {piece.group}"
        where = f"{piece.path}, sample {row}"
        return where if self._is_packed else f"{where} at byte {int(piece.records[row, 0]):,}"


@final
class _Descriptor:
    """An open file, closed when nobody has it any more."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.number).atexit = False


@final
class _Kept(threading.local):
    """What each thread of each process has open, or unpacked: the newest few."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._process = os.getpid()
        self._kept: OrderedDict[int, Any] = OrderedDict()

    def __reduce__(self) -> tuple[type["_Kept"], tuple[int]]:
        return _Kept, (self._most,)

    def get(self, key: int, make: Callable[[], T]) -> T:
        """Return what is kept under `key`; make it where it is not."""
        if self._process != os.getpid():  # what Arrow has opened before a fork is its parent's
            self._kept, self._process = OrderedDict(), os.getpid()
        found: T
        if key in self._kept:
            self._kept.move_to_end(key)
            found = self._kept[key]
        else:
            while len(self._kept) >= self._most:
                self._kept.popitem(last=False)
            found = self._kept[key] = make()
        return found
