"""Gradients of fewer bits, rounded at places that the tree fixes: every leaf, and every node after its addition (pure).

A node's value is the rounded sum of its two rounded halves. So whoever adds it, on whatever rank, gets the same bits,
and what crosses a wire, a node's value, fits the short form without losing more. Rounding knows an element's place in
the flat gradient and nothing of how that is cut, as long as cuts fall between blocks of `BLOCK` elements.

``bf16`` keeps 8 bits of every number, rounded to the nearest, ties to even. ``int8`` keeps whole numbers from -127 to
127 and one power of two for each block of 16, as the MXINT8 format of the OCP Microscaling specification does for
blocks of 32; a number is rounded up or down by chance, so that its mean is kept (Gupta et al., "Deep Learning with
Limited Numerical Precision", 2015). Chance is Philox (Salmon et al., 2011) keyed by seed, step, node and block: no
state, and no rank in it.
"""

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import nan
from typing import Protocol, Self, final

import numpy as np
import torch
from torch import Tensor

from unisono.collectives.pieces import ALIGNMENT
from unisono.collectives.tree import Node
from unisono.determinism import devices
from unisono.determinism.seeding import mix

BLOCK = ALIGNMENT
"""Elements with one scale; all cuts of flat buffers fall between blocks."""

_PIECE = 1 << 16
"""Elements that are rounded at once: they stay in a core's cache."""
_MAGNITUDE, _INFINITY = 0x7FFFFFFF, 0x7F800000
_LEAST, _NOT_FINITE = 13, 255
"""Scales: biased exponents, as in float32, of blocks' largest numbers; below the least one 2**-exponent overflows."""
_UPPER = slice(sys.byteorder == "little", None, 2)
"""Of float32's halves, those with sign and exponent."""


class Coder(Protocol):
    """Messages of tensors: the module `codec`, or a `Rounding`."""

    def room(self, piece: Tensor, /) -> int:
        """Return the bytes of the longest message of a tensor of this size and type."""

    def encode(self, piece: Tensor, into: Tensor, /) -> Tensor:
        """Write a tensor's message to the beginning of `into`, uint8, and return it."""

    def decode(self, message: Tensor, out: Tensor, /) -> object:
        """Overwrite `out` with the tensor whose message this is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding(ABC):
    """How a stretch of the flat gradient is rounded: float32, contiguous, one-dimensional, whole blocks."""

    seed: int = 0  #: The run's.
    step: int = 0  #: 1-based.
    first: int = 0  #: Place of the stretch's first element in the flat gradient.

    def at_step(self, step: int) -> Self:
        """Return the rounding of another step."""
        return replace(self, step=step)

    def at(self, first: int) -> Self:
        """Return the rounding of a stretch that begins so many elements later."""
        return replace(self, first=self.first + first)

    @abstractmethod
    def round_(self, node: Node, values: Tensor) -> Tensor:
        """Round the values of a leaf or node in place, and return them; what is rounded already stays as it is."""

    @abstractmethod
    def room(self, piece: Tensor, /) -> int:
        """See `Coder.room`; messages of one length have one size."""

    @abstractmethod
    def encode(self, piece: Tensor, into: Tensor, /) -> Tensor:
        """See `Coder.encode`; of rounded values, without losing a bit."""

    @abstractmethod
    def decode(self, message: Tensor, out: Tensor, /) -> Tensor:
        """See `Coder.decode`; returns `out`."""


@final
class Bf16(Rounding):
    """2 bytes an element: the upper half of float32, rounded to the nearest, ties to even."""

    __slots__ = ()

    def round_(self, node: Node, values: Tensor) -> Tensor:
        values.copy_(values.bfloat16())
        if (
            not values.is_cpu or not values.sum().isfinite()
        ):  # torch's conversion gives a NaN other bits at a vector's end
            values.masked_fill_(values.isnan(), nan)
        return values

    def room(self, piece: Tensor, /) -> int:
        return 2 * piece.numel()

    def encode(self, piece: Tensor, into: Tensor, /) -> Tensor:
        message = into[: self.room(piece)]
        message.view(torch.int16).copy_(piece.view(torch.int16)[_UPPER])
        return message

    def decode(self, message: Tensor, out: Tensor, /) -> Tensor:
        return out.copy_(message[: self.room(out)].view(torch.bfloat16))


@final
class Int8(Rounding):
    """17 bytes for 16 elements: a byte each, and one for the block's scale."""

    __slots__ = ()

    def round_(self, node: Node, values: Tensor) -> Tensor:
        key = mix(self.seed, "rounding", self.step, *node)
        for start in range(0, len(values), _PIECE):
            piece = values[start : start + _PIECE].view(-1, BLOCK)
            scales = _scales(piece)
            # Four numbers of 64 bits, as Philox makes them at once, are a block's 16 numbers of 16 bits.
            words = np.random.Philox(key=key, counter=(self.first + start) // BLOCK).random_raw(piece.numel() // 4)
            drawn = torch.from_numpy(words.view(np.int16)).view(-1, BLOCK)
            chance = devices.carried(drawn, values.device).to(torch.float32)
            piece.mul_(_power(260 - scales)).add_(chance, alpha=2.0**-16).add_(0.5).floor_().mul_(_power(scales - 6))
            _mark(piece, scales, nan)
        return values

    def room(self, piece: Tensor, /) -> int:
        return piece.numel() + piece.numel() // BLOCK

    def encode(self, piece: Tensor, into: Tensor, /) -> Tensor:
        blocks, count = piece.view(-1, BLOCK), piece.numel()
        scales = _scales(blocks)
        whole = blocks * _power(260 - scales)
        _mark(whole, scales, 0.0)
        into[:count].view(torch.int8).copy_(whole.view(-1))
        into[count : self.room(piece)].copy_(scales.view(-1))
        return into[: self.room(piece)]

    def decode(self, message: Tensor, out: Tensor, /) -> Tensor:
        blocks, count = out.view(-1, BLOCK), out.numel()
        scales = message[count : self.room(out)].to(torch.int32).view(-1, 1)
        out.copy_(message[:count].view(torch.int8))
        _mark(blocks.mul_(_power(scales - 6)), scales, nan)
        return out


ROUNDINGS: dict[str, type[Rounding]] = {"bf16": Bf16, "int8": Int8}


def _scales(blocks: Tensor) -> Tensor:
    """Return the scale of each block, int32 (blocks, 1); 127 steps of it reach the largest number."""
    largest = (blocks.view(torch.int32) & _MAGNITUDE).amax(1, keepdim=True).clamp_(max=_INFINITY)
    # What has more than the bits of 127 / 128 would be rounded to 128: the next power of two.
    return ((largest + 0x1FFFF) >> 23).clamp_(min=_LEAST)


def _power(exponents: Tensor) -> Tensor:
    """Return 2**(exponent - 127), float32."""
    return (exponents << 23).view(torch.float32)


def _mark(blocks: Tensor, scales: Tensor, value: float) -> None:
    """Overwrite the blocks that hold something not finite; whether there are any, a GPU is not asked."""
    bad = scales == _NOT_FINITE
    if not bad.is_cpu or bad.any():
        blocks.masked_fill_(bad, value)
