"""JSON lines: where each line of a file lies. Imports no torch."""

import json
import mmap
from pathlib import Path

import numpy as np

from unisono.data.lengths import Indices
from unisono.errors import DataError

_PIECE_BYTES = 1 << 24
_END, _RETURN = 10, 13


def scan_lines(path: Path) -> Indices:
    """Return where each line begins and how many bytes it has, without its end: int64 (n, 2); empty lines are none.

    Raises:
        DataError: The last line is no JSON, as where a file is cut short.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if not size:
            return np.empty((0, 2), dtype=np.int64)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            values = np.frombuffer(content, dtype=np.uint8)
            try:
                records = _lines(values, size)
            finally:
                del values  # else the file could not be unmapped
            if len(records):
                begin, length = records[-1].tolist()
                _check_whole(path, begin, content[begin : begin + length])
    return records


def _lines(values: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]", size: int) -> Indices:
    pieces = [
        np.flatnonzero(values[start : start + _PIECE_BYTES] == _END) + start for start in range(0, size, _PIECE_BYTES)
    ]
    if values[-1] != _END:
        pieces.append(np.array([size]))
    ends = np.concatenate(pieces).astype(np.int64)
    begins = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    lengths = ends - begins
    is_empty = lengths == 0
    short = np.flatnonzero(lengths == 1)
    is_empty[short] = values[begins[short]] == _RETURN
    records: Indices = np.stack([begins, lengths], axis=1)[~is_empty]
    return records


def _check_whole(path: Path, begin: int, last: bytes) -> None:
    try:
        json.loads(last)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: expected JSON in the last line, at byte {begin:,}, found: {error}. "
            "Hint: is the file cut short? Write it again."
        ) from None
