"""The idx file format (MNIST and its relatives), read strictly.

In: a path of an idx or idx.gz file. Out: a NumPy array. Every byte is accounted for: a file that is cut
short, has bytes too many or a header that contradicts its length is refused, never read in part.
Imports no torch.

Source: http://yann.lecun.com/exdb/mnist/ (the page's section "the IDX file format"): two zero bytes, a
type code, the number of dimensions, then each dimension as big-endian 32-bit, then the values, big-endian.
"""

import gzip
import io
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.errors import DataError

DTYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype(np.uint8),
    0x09: np.dtype(np.int8),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}
GZIP_MAGIC = b"\x1f\x8b"
MAX_DIMS = 8
MAX_BYTES = 1 << 31


def read_idx(path: Path, *, max_bytes: int = MAX_BYTES) -> NDArray[Any]:
    """Read an idx file, gzipped or not (told apart by content, not by name).

    Args:
        path: The file.
        max_bytes: Largest decompressed size that is accepted; stops a decompression bomb.

    Returns:
        An array of the file's own shape, in native byte order, writable.

    Raises:
        DataError: The file is missing, cut short, too long, not idx, or damaged gzip.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected an idx file, found: {error.strerror}. Hint: check the path.") from None
    content = gunzip(raw, path, max_bytes=max_bytes) if raw.startswith(GZIP_MAGIC) else raw
    dtype, shape, start = parse_header(content, path)
    expected = start + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        kind = "cut short" if len(content) < expected else "too long"
        raise DataError(
            f"{path}: expected {expected:,} bytes (a header of {start}, shape {shape} of {dtype.name}), "
            f"found {len(content):,}; {kind} from byte {min(expected, len(content)):,}. "
            "Hint: fetch the file again."
        )
    values = np.frombuffer(content, dtype=dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def parse_header(content: bytes, path: Path) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return dtype (as stored), shape, and the byte where the values start.

    Raises:
        DataError: Wrong magic, unknown type code, unlikely number of dimensions, or a header cut short.
    """
    if len(content) < 4 or content[:2] != b"\0\0":
        found = content[:4].hex(" ") or "an empty file"
        raise DataError(
            f"{path}: expected the idx magic 00 00 TYPE DIMS at byte 0, found {found}. "
            "Hint: this is not an idx file, or it is cut short."
        )
    code, num_dims = content[2], content[3]
    if code not in DTYPES:
        known = ", ".join(f"{known:#04x} ({dtype.name})" for known, dtype in DTYPES.items())
        raise DataError(f"{path}: expected a type code at byte 2, one of {known}, found {code:#04x}.")
    if not 1 <= num_dims <= MAX_DIMS:
        raise DataError(f"{path}: expected 1 to {MAX_DIMS} dimensions at byte 3, found {num_dims}.")
    start = 4 + 4 * num_dims
    if len(content) < start:
        raise DataError(
            f"{path}: expected {num_dims} dimensions in bytes 4 to {start - 1}, "
            f"found the end of the file at byte {len(content)}. Hint: fetch the file again."
        )
    shape = np.frombuffer(content, dtype=">u4", count=num_dims, offset=4)
    return DTYPES[code], tuple(int(size) for size in shape), start


def gunzip(raw: bytes, path: Path, *, max_bytes: int) -> bytes:
    """Return the decompressed content of a gzip file, checksum and length verified; `DataError` beyond `max_bytes`."""
    compressed = io.BytesIO(raw)
    pieces: list[bytes] = []
    left_bytes = max_bytes
    try:
        with gzip.GzipFile(fileobj=compressed) as stream:
            while piece := stream.read(1 << 20):
                pieces.append(piece)
                left_bytes -= len(piece)
                if left_bytes < 0:
                    raise DataError(
                        f"{path}: expected at most {max_bytes:,} bytes when decompressed, found more at "
                        f"byte {compressed.tell():,} of {len(raw):,}. Hint: is it the right file?"
                    )
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: expected a whole gzip file, found near byte {compressed.tell():,} of {len(raw):,}: "
            f"{error}. Hint: fetch or write it again."
        ) from None
    return b"".join(pieces)
