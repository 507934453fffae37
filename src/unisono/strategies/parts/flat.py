"""Flat buffers: all gradients (and floating-point buffers) of a model in one tensor per dtype and device.

A `Layout` says where each tensor's segment lies; it depends on the model alone, so the same element has the same
place in every world. A `FlatBuffer` is one leaf, or one partial sum, of the canonical tree. Unused places hold
-0.0, the neutral element of IEEE addition: an absent gradient changes no bit of the others, not even the sign of a
zero.
"""

import cmath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unisono.collectives.reduce import ALIGNMENT, padded_length
from unisono.determinism.switches import add_checksums, adder, checksum
from unisono.errors import StepError

_STRIDED = torch.strided


@dataclass(frozen=True, slots=True)
class _Segment:
    group: int
    offset: int
    like: Tensor


class Layout:
    """Where each of `tensors` lies in the flat buffers, one buffer per dtype and device.

    Args:
        gradients: The parameters whose gradients come first, in the model's order.
        buffers: The model's floating-point or complex buffers, which follow.
        world_size: Buffers are padded so that this many ranks own equal slices.
    """

    def __init__(self, gradients: Sequence[Tensor], buffers: Sequence[Tensor], world_size: int) -> None:
        tensors = [*gradients, *buffers]
        keys = list(dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors))
        lengths, self._gradient_lengths = [0] * len(keys), [0] * len(keys)
        self._num_gradients = len(gradients)
        self._segments: list[_Segment] = []
        for number, tensor in enumerate(tensors):
            group = keys.index((tensor.dtype, tensor.device))
            self._segments.append(_Segment(group, lengths[group], tensor))
            lengths[group] += -(-tensor.numel() // ALIGNMENT) * ALIGNMENT
            if number < len(gradients):
                self._gradient_lengths[group] = lengths[group]
        self._groups = [(dtype, device, length) for (dtype, device), length in zip(keys, lengths, strict=True)]
        self._world_size = world_size

    def new_buffer(self) -> "FlatBuffer":
        """Return a fresh buffer in which every place is -0.0."""
        flats = [
            torch.full((padded_length(length, self._world_size),), _neutral(dtype), dtype=dtype, device=device)
            for dtype, device, length in self._groups
        ]
        views = [_view(flats[segment.group], segment) for segment in self._segments]
        lengths = [length for _, _, length in self._groups]
        return FlatBuffer(flats, views, lengths, self._gradient_lengths, self._num_gradients)


def _neutral(dtype: torch.dtype) -> float | complex:
    """Return what changes no number it is added to."""
    return complex(-0.0, -0.0) if dtype.is_complex else -0.0


class FlatBuffer:
    """One flat tensor per dtype and device, and the view of each model tensor into it.

    Attributes:
        flats: One-dimensional, contiguous, padded for the world.
        views: Shaped and strided like the model's tensors, in the layout's order.
        gradients: Those of them that hold gradients; the others hold buffers.
        buffers: The others.
    """

    def __init__(
        self,
        flats: list[Tensor],
        views: list[Tensor],
        lengths: list[int],
        gradient_lengths: list[int],
        num_gradients: int,
    ) -> None:
        self.flats = flats
        self.views = views
        self.gradients, self.buffers = views[:num_gradients], views[num_gradients:]
        self._gradients = [flat[:length] for flat, length in zip(flats, gradient_lengths, strict=True)]
        # Without the padding, which depends on the world size.
        words = [flat[:length].view(torch.int64) for flat, length in zip(flats, lengths, strict=True)]
        self._sums = [adder(piece) for piece in words]

    def add_(self, other: "FlatBuffer") -> "FlatBuffer":
        """Add `other` element by element into this buffer."""
        for mine, theirs in zip(self.flats, other.flats, strict=True):
            mine.add_(theirs)
        return self

    def is_finite(self) -> bool:
        """Whether no gradient is NaN or infinite; buffers may be (masks often are)."""
        # A sum is many times faster than isfinite(); it may overflow, so only isfinite() condemns.
        return all(cmath.isfinite(piece.sum().item()) or bool(piece.isfinite().all()) for piece in self._gradients)

    def checksum(self) -> int:
        """Return the sum of the bits as 64-bit integers, modulo 2**64."""
        return add_checksums(int(add_up()) for add_up in self._sums)


def take_gradients(parameters: Mapping[str, nn.Parameter], leaf: FlatBuffer, present: npt.NDArray[np.bool_]) -> None:
    """Move gradients into the first views of a leaf; a parameter without one leaves -0.0, the neutral element.

    Args:
        parameters: By name, in the layout's order.
        leaf: Where they go.
        present: bool (parameters,): set where there is a gradient.

    Raises:
        StepError: A gradient is sparse.
    """
    grads = [parameter.grad for parameter in parameters.values()]
    plain = [grad for grad in grads if grad is not None and grad.layout is _STRIDED]
    if plain and len(plain) == len(grads):  # as nearly always
        present[:] = True
        torch._foreach_copy_(leaf.gradients, plain)
        for parameter in parameters.values():
            parameter.grad = None
        return
    targets, sources = [], []
    for index, ((name, parameter), view) in enumerate(zip(parameters.items(), leaf.gradients, strict=True)):
        grad = parameter.grad
        if grad is None:
            view.fill_(-0.0)
            continue
        if grad.layout is not _STRIDED:
            raise StepError(f"the gradient of {name!r} is {grad.layout}. Hint: use sparse=False.")
        present[index] = True
        targets.append(view)
        sources.append(grad)
        parameter.grad = None
    if targets:
        torch._foreach_copy_(targets, sources)


def _view(flat: Tensor, segment: _Segment) -> Tensor:
    like = segment.like
    piece = flat[segment.offset : segment.offset + like.numel()]
    # The tensor's own strides (channels_last, say) where they fill the segment, else the plain order.
    return piece.as_strided(like.shape, like.stride(), segment.offset) if is_dense(like) else piece.view(like.shape)


def is_dense(tensor: Tensor) -> bool:
    """Whether the strides visit each of ``numel`` places once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def padding_checksum(tensors: Iterable[Tensor]) -> int:
    """Return what the unused places behind these tensors add to the checksum of a `FlatBuffer`."""
    ends = []
    for tensor in tensors:
        if used := tensor.numel() % ALIGNMENT:
            last = torch.full((ALIGNMENT,), _neutral(tensor.dtype), dtype=tensor.dtype)
            last[:used] = 0
            ends.append(last)
    return checksum(ends)


def slice_checksum(part: Tensor, start: int) -> int:
    """Return what a slice of a tensor adds to the `checksum` of the whole.

    Args:
        part: The slice.
        start: Index of its first element in the flattened whole.
    """
    before = start % max(1, 8 // part.element_size())  # elements of the same 64 bits
    return checksum([torch.cat([part.new_zeros(before), part.detach().reshape(-1)]) if before else part])
