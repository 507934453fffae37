"""Bytes to disk and back: synced writes, checked reads, tensors as safetensors without a copy.

All of it by name in a `Directory` that is held open, so never through a link.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from unisono.checkpoint.values import printable
from unisono.errors import CheckpointError
from unisono.system.descriptors import pieces
from unisono.system.directory import Directory

_PIECE = 4 << 20  # bytes hashed and written at a time
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileSum:
    """What a manifest says about a file."""

    bytes: int
    sha256: str


def write_synced(home: Directory, name: str, chunks: Iterable[bytes | memoryview]) -> FileSum:
    """Create a file, write `chunks`, and put it on the disk; returns its size and the hash of what was handed in.

    Raises:
        OSError: It exists, or writing or syncing failed; a failed sync is never tried again.
    """
    digest, size = hashlib.sha256(), 0
    with home.create(name) as file:
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            for start in range(0, len(view), _PIECE):
                piece = view[start : start + _PIECE]
                digest.update(piece)
                file.write(piece)
                size += len(piece)
        file.sync()
    return FileSum(size, digest.hexdigest())


def read_whole(home: Directory, name: str, most: int) -> bytes:
    """Return a file's bytes.

    Raises:
        CheckpointError: It is larger than `most` bytes, or no regular file.
        OSError: It cannot be read.
    """
    with home.reading(name) as (descriptor, size):
        if size > most:
            raise CheckpointError(f"{home.path / name} has {size} bytes, more than the {most} expected.")
        return b"".join(pieces(descriptor))


def check_sum(home: Directory, name: str, expected: FileSum, *, from_disk: bool = False) -> None:
    """Compare a file with what its manifest says, without holding it in memory; see `read_checked`."""
    for _ in _checked(home, name, expected, from_disk):
        pass


def read_checked(home: Directory, name: str, expected: FileSum, *, from_disk: bool = False) -> bytes:
    """Return the bytes of a file that is what its manifest says.

    Args:
        home: Its directory.
        name: Of the file.
        expected: Its size and hash.
        from_disk: Ask the system to forget its own copy first, so that the disk's is read.

    Raises:
        CheckpointError: It differs.
        OSError: It cannot be read.
    """
    return b"".join(_checked(home, name, expected, from_disk))


def _checked(home: Directory, name: str, expected: FileSum, from_disk: bool) -> Iterator[bytes]:
    digest = hashlib.sha256()
    with home.reading(name) as (descriptor, size):
        if size != expected.bytes:  # before any memory is taken for it
            raise damaged(home.path / name, expected, size, None)
        if from_disk:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        for piece in pieces(descriptor):
            digest.update(piece)
            yield piece
    if digest.hexdigest() != expected.sha256:
        raise damaged(home.path / name, expected, size, digest.hexdigest())


def damaged(path: Path, expected: FileSum, size: int, sha256: str | None) -> CheckpointError:
    """Return the error that tells expected from found; None: another size says enough."""
    found = f"{size} bytes" if sha256 is None else f"{size} with {sha256}"
    return CheckpointError(
        f"{printable(str(path))} is damaged: expected {expected.bytes} bytes with SHA-256 {expected.sha256}, "
        f"found {found}."
    )


def check_dtypes(tensors: Mapping[str, Tensor]) -> None:
    """Refuse (`CheckpointError`) tensors that `safetensors_chunks` cannot write; name the first."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES or tensor.layout != torch.strided:
            raise CheckpointError(
                f"cannot save {name!r}: {tensor.dtype} ({tensor.layout}) has no place in a safetensors file."
            )


def safetensors_chunks(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file: header, then each tensor's bytes, contiguous CPU tensors without a copy.

    The library's own writer would copy everything first, holding the interpreter's lock; this one is for a thread
    beside the training.

    Raises:
        CheckpointError: A dtype that the format does not know; names the tensor.

    Source: https://github.com/huggingface/safetensors#format
    """
    check_dtypes(tensors)
    # Widest first keeps every tensor aligned to its own width.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, object] = {}
    offset = 0
    for name, tensor in ordered:
        end = offset + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:
        if tensor.nbytes:
            yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
