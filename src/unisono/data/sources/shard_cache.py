"""The index of a shard, built once per machine and kept; a compressed shard is also unpacked there, once.

A compressed file is one long sequence: its millionth line costs the million before. Unpacked it costs its size on the
disk once, and every sample a single read after that. An entry is found by the shard's size, time of change and blocks
(`identity`), so an edited shard has another one. Imports no torch.
"""

import gzip
import importlib
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unisono.data.files.cache import cache_key, cached_directory
from unisono.data.files.fetch import file_lock
from unisono.data.files.identity import sampled_identity
from unisono.data.lengths import Indices
from unisono.data.sources.line_records import scan_lines
from unisono.data.sources.names import packing_of
from unisono.data.sources.tar_records import scan_tar
from unisono.errors import DataError
from unisono.system.loading import needing

_FORMAT = 1
_PIECE_BYTES = 1 << 20
_BLOCKS = 16  # there may be thousands of shards


def shard_identity(path: Path) -> str:
    """Return what tells a shard from others; see `sampled_identity`."""
    return sampled_identity(path, _BLOCKS)


class Indexed(NamedTuple):
    """A file whose samples can be read at any place: the file, and int64 (n, 2), begin and length of each."""

    path: Path
    records: Indices


def indexed(path: Path, kind: str, name: str, cache: Path) -> Indexed:
    """Return the index of a shard of kind ``tar`` or ``lines``; build it where nobody did yet."""
    changed = path.stat().st_mtime_ns
    key = cache_key(source_sha256=name, settings={"kind": kind, "changed": changed}, format_version=_FORMAT)
    entry, plain = cache / key, path
    if packing_of(path) is not None:
        plain = cache / f"{key}.plain"
        _unpack_once(path, plain)

    def build(folder: Path) -> None:
        records = scan_lines(plain) if kind == "lines" else np.array(list(scan_tar(plain)), dtype=np.int64)
        np.save(folder / "records.npy", records.reshape(-1, 2))

    entry = cached_directory(entry, build)
    return Indexed(plain, np.load(entry / "records.npy", mmap_mode="r"))


def _unpack_once(path: Path, plain: Path) -> None:
    """Write what `path` holds to `plain`, unless it is there as it was written; `DataError` where there is no room."""
    about = plain.with_suffix(".json")
    if _is_as_written(plain, about):
        return
    with file_lock(plain.parent / f".{plain.name}.lock"):
        if _is_as_written(plain, about):
            return
        about.unlink(missing_ok=True)
        try:
            with plain.open("wb") as target:
                for piece in _unpacked(path):
                    target.write(piece)
                target.flush()
                os.fsync(target.fileno())
            about.write_text(json.dumps({"identity": shard_identity(plain), "of": str(path)}))
        except OSError as error:
            plain.unlink(missing_ok=True)
            raise DataError(
                f"{plain.parent}: expected room to unpack {path}, found: {error.strerror}. "
                "Hint: free some space, or pass another cache=."
            ) from None
        except BaseException:
            plain.unlink(missing_ok=True)
            raise


def _is_as_written(plain: Path, about: Path) -> bool:
    try:
        written: Any = json.loads(about.read_text())
        return plain.is_file() and written["identity"] == shard_identity(plain)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _unpacked(path: Path) -> Iterator[bytes]:
    """Yield what a compressed file holds; `DataError` where it is damaged or cut short."""
    failures: tuple[type[Exception], ...] = (EOFError, zlib.error, OSError)
    zstandard = None
    if packing_of(path) == ".zst":
        with needing("shards", f"{path} cannot be read: "):
            zstandard = importlib.import_module("zstandard")
        failures = (*failures, zstandard.ZstdError)
    try:
        if zstandard is None:
            with gzip.open(path) as stream:
                yield from iter(lambda: stream.read(_PIECE_BYTES), b"")
        else:
            yield from _frames(path, zstandard.ZstdDecompressor())
    except failures as error:
        raise DataError(
            f"{path}: expected a whole {packing_of(path)} file, found: {error}. Hint: fetch or write it again."
        ) from None


def _frames(path: Path, decompressor: Any) -> Iterator[bytes]:
    """Yield what the frames of a Zstandard file hold; its readers take a frame that is cut short for its end."""
    frame, is_within = decompressor.decompressobj(), False
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            while piece:
                yield frame.decompress(piece)
                piece, is_within = frame.unused_data if frame.eof else b"", not frame.eof
                if frame.eof:
                    frame = decompressor.decompressobj()
    if is_within:
        raise EOFError("the last frame is cut short")
