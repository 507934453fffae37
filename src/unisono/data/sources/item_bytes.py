"""Items of a stream as bytes, for ranks that have not read them: the same types, shapes and values (no pickle).

What goes in is what `raw_hash.hash_item` takes; subclasses and arrays that lie in strides are refused, since what comes
out could compute to other bits.
"""

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unisono.collectives.transport import Transport
from unisono.errors import DataError

_PLAIN = (type(None), bool, int, float, str)
_LISTS: dict[str, Any] = {"list": list, "tuple": tuple}
_BYTES: dict[str, Any] = {"bytes": bytes, "bytearray": bytearray}
_HEADER = 8


def pack(item: Any) -> bytes:
    """Return the bytes of an item.

    Raises:
        DataError: It holds something else.
    """
    blobs: list[bytes] = []
    told = json.dumps(_told(item, blobs)).encode()
    return b"".join((len(told).to_bytes(_HEADER, "little"), told, *blobs))


def unpack(content: bytes) -> Any:
    """Return the item of such bytes, in memory of its own."""
    end = _HEADER + int.from_bytes(content[:_HEADER], "little")
    return _made(json.loads(content[_HEADER:end]), io.BytesIO(content[end:]).read)


def handed(transport: Transport, everyones: list[bytes]) -> bytes:
    """Return what the leader has for this rank; the leader alone gives what it has for each; collective."""
    size = transport.agree("the leader's items", max(map(len, everyones), default=0))[0]
    sent = torch.zeros(size * len(everyones), dtype=torch.uint8)
    for row, own in zip(sent.view(len(everyones), size), everyones, strict=True):
        row[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    received = torch.empty(size, dtype=torch.uint8)
    others = [0] * (transport.world_size - 1)
    transport.all_to_all(sent, [size] * len(everyones) or [0, *others], received, [size, *others])
    return received.numpy().tobytes()


def _told(item: Any, blobs: list[bytes]) -> Any:
    kind = type(item)
    if kind in _PLAIN:
        return item
    if kind in (list, tuple):
        return [kind.__name__, [_told(value, blobs) for value in item]]
    if kind is dict:
        return ["dict", [[_told(key, blobs), _told(value, blobs)] for key, value in item.items()]]
    if kind is complex:
        return ["complex", item.real, item.imag]
    if kind in (bytes, bytearray):
        return [kind.__name__, _kept(bytes(item), blobs)]
    if kind is Tensor and item.device.type == "cpu" and item.layout is torch.strided and item.is_contiguous():
        flat = item.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
        return ["tensor", _kept(flat, blobs), str(item.dtype)[6:], list(item.shape)]
    is_array = kind is np.ndarray and item.flags.c_contiguous and not item.dtype.hasobject and item.dtype.fields is None
    if is_array or (isinstance(item, np.generic) and item.dtype.kind in "biufcU"):
        return ["array" if is_array else "scalar", _kept(item.tobytes(), blobs), item.dtype.str, list(item.shape)]
    raise DataError(
        "a stream that the leader reads hands over numbers, texts, bytes, arrays and tensors that lie in one piece, "
        f"and plain lists, tuples and dictionaries of them, got a {kind.__name__}. Hint: .contiguous(), "
        "np.ascontiguousarray; build other types in transform=; or Stream(..., read='all')."
    )


def _kept(blob: bytes, blobs: list[bytes]) -> int:
    blobs.append(blob)
    return len(blob)


def _made(told: Any, take: Callable[[int], bytes]) -> Any:
    if not isinstance(told, list):
        return told
    kind, rest, *more = told
    if kind in _LISTS:
        return _LISTS[kind](_made(value, take) for value in rest)
    if kind == "dict":
        return {_made(key, take): _made(value, take) for key, value in rest}
    if kind == "complex":
        return complex(rest, *more)
    blob = take(rest)
    if kind in _BYTES:
        return _BYTES[kind](blob)
    dtype, shape = more
    if kind == "tensor":
        made = torch.empty(shape, dtype=getattr(torch, dtype))
        if blob:
            made.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(blob), dtype=torch.uint8))
        return made
    array = np.frombuffer(blob, dtype=np.dtype(dtype)).reshape(shape)
    return array.copy() if kind == "array" else array[()]
