"""A hash of what a stream hands out, the same in every process: numbers, texts, bytes, arrays, and nests of them."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unisono.errors import DataError

Put = Callable[[bytes], object]


def hash_item(item: Any) -> bytes:
    """Return 16 bytes that depend on types, shapes and values of an item and of all that is in it."""
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest.update, item)
    return digest.digest()


def _feed(put: Put, item: Any) -> None:
    kind = type(item).__name__
    if item is None or isinstance(item, bool | int | float | complex):
        _put(put, kind, repr(item).encode())
    elif isinstance(item, str):
        _put(put, kind, item.encode("utf-8", "surrogatepass"))
    elif isinstance(item, bytes | bytearray):
        _put(put, kind, bytes(item))
    elif isinstance(item, dict):
        _put(put, kind, str(len(item)).encode())
        for key, value in item.items():
            _feed(put, key)
            _feed(put, value)
    elif isinstance(item, list | tuple):
        _put(put, kind, str(len(item)).encode())
        for value in item:
            _feed(put, value)
    else:
        _feed_array(put, kind, item)


def _feed_array(put: Put, kind: str, item: Any) -> None:
    if isinstance(item, Tensor):
        content = item.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        _put(put, f"{kind} {item.dtype} {tuple(item.shape)}", content)
    elif hasattr(item, "__array_interface__") or hasattr(item, "__array__"):
        array = np.asarray(item)
        if array.dtype.hasobject:
            raise _no_bytes(kind)
        _put(put, f"{kind} {array.dtype.str} {array.shape}", np.ascontiguousarray(array).tobytes())
    else:
        raise _no_bytes(kind)


def _put(put: Put, kind: str, content: bytes) -> None:
    put(f"{kind} {len(content)}\n".encode())
    put(content)


def _no_bytes(kind: str) -> DataError:
    return DataError(
        f"expected items of numbers, texts, bytes, arrays, tensors and lists or dictionaries of them, got a {kind}, "
        "whose content cannot be compared between ranks. Hint: yield what it is made of, and build it in transform=."
    )
