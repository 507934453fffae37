"""An ``.npz`` file as untrusted input: what a header claims is compared with what there is before memory is spent.

In: a path. Out: its arrays by name. Objects (pickles) are refused. Imports no torch.
"""

import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from unisono.errors import DataError

MAX_BYTES = 1 << 36
"""Of all arrays together."""
_LARGEST_RATIO = 1100
"""Deflate makes at most 1,032 bytes of one."""


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return all arrays of a file.

    Raises:
        DataError: The file is missing, damaged or none of arrays; an array holds objects, is larger than what the file
            can hold, or than memory.
    """
    found: dict[str, npt.NDArray[Any]] = {}
    try:
        left = min(MAX_BYTES, path.stat().st_size * _LARGEST_RATIO)
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name, is_array, _ = info.filename.rpartition(".npy")
                if not is_array:
                    continue
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise DataError(
                        f"{path}: {name!r}: expected an array as np.savez writes it, found another packing."
                    )
                with archive.open(info) as member:
                    found[name] = _read(member, info.file_size, left, f"{path}: {name!r}")
                left -= found[name].nbytes
    except (MemoryError, RecursionError) as error:  # the second comes from a header that is an expression
        raise DataError(
            f"{path}: expected arrays that fit into memory, found {str(error) or 'larger ones'}. "
            "Hint: keep images as files, in a folder per class."
        ) from None
    except DataError:
        raise
    except (OSError, ValueError, EOFError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile) as error:
        said = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{path}: expected an .npz file of arrays, found: {said}. Hint: write it again.") from None
    return found


def _read(member: IO[bytes], stored_bytes: int, left_bytes: int, where: str) -> npt.NDArray[Any]:
    """Return one array of at most `left_bytes`, from its file of `stored_bytes`; `DataError` as `read_npz`."""
    version = npy.read_magic(member)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read_header is None:
        raise DataError(f"{where}: expected an array in format 1.0 or 2.0, found {version}. Hint: np.savez_compressed.")
    try:
        shape, is_fortran, dtype = read_header(member)
    except Exception as error:  # noqa: BLE001 - NumPy evaluates the header, which is text, and lets errors of all kinds out
        said = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{where}: expected the header of an array, found: {said}. Hint: write it again.") from None
    if dtype.hasobject:
        raise DataError(
            f"{where}: expected numbers or texts, found Python objects, which are not loaded: they could run any code. "
            "Hint: np.asarray(values, dtype=...) before np.savez."
        )
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes > left_bytes or num_bytes != stored_bytes - member.tell():
        raise DataError(
            f"{where}: expected {num_bytes:,} bytes (shape {shape} of {dtype.name}), found "
            f"{stored_bytes - member.tell():,} in a file that leaves room for {left_bytes:,}. Hint: write it again."
        )
    values = np.frombuffer(member.read(num_bytes), dtype=dtype)
    if len(values) != math.prod(shape):
        raise DataError(f"{where}: expected {num_bytes:,} bytes, found {values.nbytes:,}. Hint: write it again.")
    return values.reshape(shape, order="F" if is_fortran else "C")
