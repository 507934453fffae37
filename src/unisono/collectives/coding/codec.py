"""Fewer bytes for gradients on their way, and every bit of them at the other end (pure).

A gradient's numbers have sizes of a few orders of magnitude: of each number's first byte (sign and exponent; of
float32 all but the exponent's last bit) some 3 bits are news, of the other bytes nearly all. And many numbers are zero:
words that no text holds, units that were silent. A message holds one bit for each number that says whether it is zero
(where one in 16 is), the first bytes of all others under a Huffman code, and their other bytes as they are, plane by
plane, the widest first. The Huffman code is zlib's (`Z_HUFFMAN_ONLY`): no dependency, and other threads go on
meanwhile. Where all that would be longer, the message is the bytes themselves. A message says how long it is, so a
place of `room` bytes fits whatever comes.

The idea of coding exponents alone: ZipCCL (arXiv 2604.27844).
"""

import struct
import sys
import zlib
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.errors import RankDivergence

Bytes = npt.NDArray[np.uint8]

_HEADER = struct.Struct("<4sBB2xQQQQ")  # magic, kind, bytes of a number; numbers, those that follow, bytes of mask, top
_MAGIC = b"UPL1"
_RAW, _PLANES = 0, 1
_WIDTH = {torch.bfloat16: 2, torch.float16: 2, torch.float32: 4, torch.float64: 8}
_ZEROS_PER_NUMBER = 16
"""One zero in so many numbers pays for a bit that each of them then has."""
_LEAST_GAIN = 1.05


def room(piece: Tensor) -> int:
    """Return the bytes of the longest message that `encode` makes of a tensor of this size and type."""
    return _HEADER.size + piece.nbytes


def encode(piece: Tensor, into: Tensor) -> Tensor:
    """Write the message of a piece, and return it.

    Args:
        piece: On the CPU, contiguous; floating-point numbers are made shorter, others are copied.
        into: uint8, at least `room` of the piece; overwritten.

    Returns:
        The first bytes of `into`: as many as the message has.
    """
    width = _WIDTH.get(piece.dtype, 1) if sys.byteorder == "little" else 1
    raw, place = _bytes_of(piece), into.numpy()
    found = _planes(raw.view(f"u{width}"), place) if width > 1 else None
    if found is None:
        found = raw.nbytes, 0, 0
        place[_HEADER.size : room(piece)] = raw
        end, kind = room(piece), _RAW
    else:
        kept, mask, top = found
        end, kind = _HEADER.size + kept * (width - 1) + mask + top, _PLANES
    _HEADER.pack_into(place.data, 0, _MAGIC, kind, piece.element_size(), piece.numel(), *found)
    return into[:end]


def decode(message: Tensor, out: Tensor) -> int:
    """Read a message, and return its length.

    Args:
        message: uint8; what lies behind the message does not matter.
        out: Overwritten: on the CPU, contiguous, of the type and size of the piece that was encoded.

    Raises:
        RankDivergence: The bytes are no message, or one of another size or type; `out` may have been overwritten.
    """  # noqa: DOC501 - a function makes the error
    data, target = message.numpy(), _bytes_of(out)
    if len(data) < _HEADER.size:
        raise _refuse(f"{_HEADER.size} bytes or more", f"{len(data)}")
    magic, kind, width, count, kept, mask, top = _HEADER.unpack_from(data.data)
    if magic != _MAGIC or (width, count) != (out.element_size(), out.numel()):
        wanted = f"{_MAGIC!r} and {out.numel()} numbers of {out.element_size()} bytes"
        raise _refuse(wanted, f"{magic!r} and {count} of {width}")
    if kind == _RAW:
        end = _HEADER.size + target.nbytes
        if (kept, mask, top) != (target.nbytes, 0, 0) or end > len(data):
            raise _refuse(f"{target.nbytes} bytes as they are", f"{kept}, {mask} and {top} of {len(data)}")
        target[:] = data[_HEADER.size : end]
        return int(end)
    end = int(_HEADER.size + kept * (width - 1) + mask + top)
    if kind != _PLANES or _WIDTH.get(out.dtype) != width or kept > count or end > len(data):
        raise _refuse("planes that fit", f"kind {kind}, {kept} of {count} numbers, {end} of {len(data)} bytes")
    values = target.view(f"u{width}")
    planes, first = data[_HEADER.size : end - mask - top], end - top
    if not mask:
        if kept != count:
            raise _refuse(f"{count} numbers", f"{kept}")
        _join(values, planes, _inflate(data[first:end], kept))
        return end
    present = np.unpackbits(_inflate(data[first - mask : first], -(-count // 8)), count=count).view(np.bool_)
    places = np.flatnonzero(present)
    if len(places) != kept:
        raise _refuse(f"{kept} numbers that are not zero", f"{len(places)} places for them")
    others = np.empty(kept, values.dtype)
    _join(others, planes, _inflate(data[first:end], kept))
    values.fill(0)
    values[places] = others
    return end


def _planes(values: npt.NDArray[Any], place: Bytes) -> tuple[int, int, int] | None:
    """Write the planes behind the header; return how many numbers, bytes of mask and of first bytes.

    None: they would hardly be shorter than the numbers themselves.
    """
    width, count, mask = values.itemsize, len(values), b""
    if (count - np.count_nonzero(values)) * _ZEROS_PER_NUMBER > count:
        present = values != 0
        mask = _deflate(np.packbits(present), zlib.Z_RLE)
        values = np.compress(present, values)
    top = _deflate(_plane(values, 1, width - 1).copy(), zlib.Z_HUFFMAN_ONLY)
    planes = len(values) * (width - 1)
    if (planes + len(mask) + len(top)) * _LEAST_GAIN > count * width:
        return None
    at = _HEADER.size
    for size, offset in _plan(width):
        end = at + len(values) * size
        place[at:end].view(f"u{size}")[:] = _plane(values, size, offset)
        at = end
    place[at : at + len(mask)] = np.frombuffer(mask, np.uint8)
    at += len(mask)
    place[at : at + len(top)] = np.frombuffer(top, np.uint8)
    return len(values), len(mask), len(top)


def _join(values: npt.NDArray[Any], planes: Bytes, top: Bytes) -> None:
    at, width = 0, values.itemsize
    for size, offset in _plan(width):
        end = at + len(values) * size
        _plane(values, size, offset)[:] = planes[at:end].view(f"u{size}")
        at = end
    _plane(values, 1, width - 1)[:] = top


def _plan(width: int) -> list[tuple[int, int]]:
    """Return size and offset in a number, in bytes, of the planes of all bytes but the last, which counts most."""
    return {2: [(1, 0)], 4: [(2, 0), (1, 2)], 8: [(4, 0), (2, 4), (1, 6)]}[width]


def _plane(values: npt.NDArray[Any], size: int, offset: int) -> npt.NDArray[Any]:
    return values.view(f"u{size}")[offset // size :: values.itemsize // size]


def _bytes_of(tensor: Tensor) -> Bytes:
    flat = tensor.detach().view(-1)
    return flat.view(torch.uint8).numpy() if len(flat) else np.empty(0, np.uint8)  # torch views no NumPy's empty array


def _deflate(data: Bytes, strategy: int) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
    return packer.compress(data.data) + packer.flush()


def _inflate(data: Bytes, size: int) -> Bytes:
    """Return the bytes that were packed, so many.

    Raises:
        RankDivergence: They are others, or more, or fewer.
    """  # noqa: DOC501 - a function makes the error
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        found = unpacker.decompress(data.data, size + 1)
    except zlib.error as error:
        raise _refuse(f"{size} packed bytes", f"what zlib cannot read ({error})") from None
    if len(found) != size or not unpacker.eof or unpacker.unused_data:
        raise _refuse(f"{size} packed bytes", f"{len(found)}, or more behind them")
    return np.frombuffer(found, np.uint8)


def _refuse(expected: str, found: str) -> RankDivergence:
    return RankDivergence(
        f"expected {expected} in a coded message of gradients, found {found}. "
        "Hint: all ranks need the same unisono, model and options; codec='none' sends the numbers as they are."
    )


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What was measured of a link, and of the codec on what is to cross it."""

    link: float  #: Bytes per second and direction.
    encoded: float  #: Bytes of gradients that a rank encodes in a second.
    decoded: float  #: The same for decoding.
    ratio: float  #: How many times fewer bytes.
    computing: float = 0.0  #: Seconds that a rank computes for each byte it sends.


def pick(found: Measured) -> str:
    """Return ``planes`` where a step with the codec is at least 5 % faster than without, else ``none``.

    A rank computes, encodes and decodes while bytes are on their way, as many in either direction: a step takes the
    longer of the two.
    """
    plain = max(found.computing, 1 / found.link)
    busy = found.computing + 1 / found.encoded + 1 / found.decoded
    return "planes" if max(busy, 1 / (found.link * found.ratio)) * _LEAST_GAIN <= plain else "none"
