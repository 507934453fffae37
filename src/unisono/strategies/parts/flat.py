"""Flat buffers: all gradients (and floating-point buffers) of a model in one tensor per dtype and device.

A `Layout` says where each tensor's segment lies; it depends on the model alone, so the same element has the same
place in every world. A `FlatBuffer` is one leaf, or one partial sum, of the canonical tree. Unused places hold
-0.0, the neutral element of IEEE addition: an absent gradient changes no bit of the others, not even the sign of a
zero.
"""

import cmath
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unisono.collectives.coding.rounding import Rounding
from unisono.collectives.pieces import ALIGNMENT, cut_into_buckets, padded_length
from unisono.determinism.device_reads import DeviceReads, flaws_of, largest_of
from unisono.determinism.switches import MODULUS, add_checksums, adder, checksum
from unisono.errors import StepError

STRIDED, NO_TENSOR = torch.strided, type(None)


@dataclass(frozen=True, slots=True)
class _Segment:
    group: int
    offset: int
    like: Tensor


class Layout:
    """Where each of `tensors` lies in the flat buffers, one buffer per dtype and device.

    Args:
        gradients: The parameters whose gradients lie there, in the model's order.
        buffers: The model's floating-point or complex buffers, which lie before them: like the gradients of the first
            layers, they are known last, and flat buffers are exchanged from their end to their start.
        world_size: Buffers are padded so that this many ranks own equal slices.
        are_apart: Whether gradients get flat buffers of their own, which are rounded.
    """

    def __init__(
        self, gradients: Sequence[Tensor], buffers: Sequence[Tensor], world_size: int, *, are_apart: bool = False
    ) -> None:
        kinds = [(tensor, True) for tensor in gradients] + [(tensor, not are_apart) for tensor in buffers]
        keys = list(dict.fromkeys((tensor.dtype, tensor.device, kind) for tensor, kind in kinds))
        lengths, starts = [0] * len(keys), [0] * len(keys)
        segments: list[_Segment] = []
        for number, tensor in enumerate([*buffers, *gradients]):
            group = keys.index((tensor.dtype, tensor.device, not are_apart or number >= len(buffers)))
            segments.append(_Segment(group, lengths[group], tensor))
            lengths[group] += -(-tensor.numel() // ALIGNMENT) * ALIGNMENT
            if number < len(buffers):
                starts[group] = lengths[group]
        self._num_gradients, self._gradient_starts = len(gradients), starts
        self._segments = [*segments[len(buffers) :], *segments[: len(buffers)]]
        self._groups = [(dtype, device, length) for (dtype, device, _), length in zip(keys, lengths, strict=True)]
        self._are_rounded = [are_apart and kind for *_, kind in keys]
        self._world_size = world_size

    def new_buffer(self) -> "FlatBuffer":
        """Return a fresh buffer in which every place is -0.0."""
        flats = [
            torch.full((padded_length(length, self._world_size),), _neutral(dtype), dtype=dtype, device=device)
            for dtype, device, length in self._groups
        ]
        views = [_view(flats[segment.group], segment) for segment in self._segments]
        lengths = [length for _, _, length in self._groups]
        return FlatBuffer(flats, views, lengths, self._gradient_starts, self._num_gradients)

    def buckets(self, *, are_cut: bool) -> list["Bucket"]:
        """Return the pieces in which the flat buffers are exchanged, in that order; uncut, each is one piece."""
        found = []
        for group, (dtype, _, length) in enumerate(self._groups):
            total = padded_length(length, self._world_size)
            cut = cut_into_buckets(total, self._world_size, dtype.itemsize)
            for part in cut if are_cut else [range(total)] if total else []:
                inside = [
                    index
                    for index, segment in enumerate(self._segments[: self._num_gradients])
                    if segment.group == group
                    and segment.offset < part.stop
                    and segment.offset + segment.like.numel() > part.start
                ]
                start = min(max(part.start, self._gradient_starts[group]), part.stop)
                gradients = range(start, min(part.stop, length))
                found.append(Bucket(group, part, gradients, tuple(inside), self._are_rounded[group]))
        return found


class Bucket(NamedTuple):
    """A piece of a flat buffer that is exchanged as one."""

    group: int  #: Index of the flat buffer.
    part: range  #: Its elements.
    gradients: range  #: Those of them that are gradients, not buffers or padding.
    parameters: tuple[int, ...]  #: The parameters with an element there, by their index in the layout.
    #: Whether it is rounded, if anything is: all of it are gradients, or places that nothing uses.
    is_rounded: bool = False

    @property
    def has_buffers(self) -> bool:
        """Whether something else than gradients lies there."""
        return self.gradients.start > self.part.start

    def of(self, buffer: "FlatBuffer") -> Tensor:
        """Return this piece of a buffer."""
        return buffer.flats[self.group].narrow(0, self.part.start, len(self.part))

    def rounding(self, of_step: Rounding | None) -> Rounding | None:
        """Return how this piece is rounded in a step; None: not at all."""
        return of_step.at(self.part.start) if of_step is not None and self.is_rounded else None


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
        words: The flat tensors' 64-bit words, without the padding for the world.
    """

    def __init__(
        self,
        flats: list[Tensor],
        views: list[Tensor],
        lengths: list[int],
        gradient_starts: list[int],
        num_gradients: int,
    ) -> None:
        self.flats = flats
        self.views = views
        self.gradients, self.buffers = views[:num_gradients], views[num_gradients:]
        self._gradients = [flat[a:b] for flat, a, b in zip(flats, gradient_starts, lengths, strict=True)]
        # Without the padding, which depends on the world size.
        words = [flat[:length].view(torch.int64) for flat, length in zip(flats, lengths, strict=True)]
        self.words, self._sums = words, [adder(piece) for piece in words]
        self._covers: dict[tuple[int, ...], list[Tensor]] = {}

    def add_(self, other: "FlatBuffer") -> "FlatBuffer":
        """Add `other` element by element into this buffer."""
        for mine, theirs in zip(self.flats, other.flats, strict=True):
            mine.add_(theirs)
        return self

    def clear(self) -> "FlatBuffer":
        """Put -0.0 into every place."""
        for flat in self.flats:
            flat.fill_(_neutral(flat.dtype))
        return self

    def scale(self, factor: float) -> int:
        """Multiply the gradients, not the buffers; return the checksum."""
        if factor != 1.0:
            torch._foreach_mul_(self._gradients, factor)
        return self.checksum()

    def covering(self, indices: tuple[int, ...]) -> list[Tensor]:
        """Return the places of some gradients, by their indices, ascending: neighbours in one, with what pads them."""
        found = self._covers.get(indices)
        if found is None:
            found = self._covers[indices] = _cover([self.gradients[index] for index in indices])
        return found

    def is_finite(self) -> bool:
        """Whether no gradient is NaN or infinite; buffers may be (masks often are)."""
        return all(map(is_finite, self._gradients))

    def checksum(self) -> int:
        """Return the sum of the bits as 64-bit integers, modulo 2**64."""
        if len(self._sums) == 1:
            return int(self._sums[0]()) % MODULUS
        return add_checksums([int(add_up()) for add_up in self._sums])

    def checksum_parts(self) -> list[Tensor]:
        """Return sums that `add_checksums` makes the `checksum` of, int64 () each, on the buffer's devices."""
        return [piece.sum() for piece in self.words]

    def largest(self) -> list[Tensor]:
        """Return what `largest_of` says of the gradients."""
        return largest_of(self._gradients)

    def flaws(self, reads: DeviceReads) -> list[Tensor]:
        """Return what `flaws_of` says of the gradients."""
        return flaws_of(self._gradients, reads)


def is_finite(piece: Tensor) -> bool:
    """Whether no element is NaN or infinite."""
    # A sum is many times faster than isfinite(); it may overflow, so only isfinite() condemns.
    return cmath.isfinite(piece.sum().item()) or bool(piece.isfinite().all())


def are_finite(grads: Iterable[Tensor | None]) -> bool:
    """Whether no element of what is there is NaN or infinite."""
    return all(grad is None or bool(grad.isfinite().all()) for grad in grads)


def fold(views: list[Tensor], tensors: Sequence[Tensor | None], *, adds: bool) -> None:
    """Put tensors into views of a flat buffer, or add them to what is there; an absent one counts as -0.0 (neutral).

    Args:
        views: Of one leaf or sum.
        tensors: Of their shapes and dtypes.
        adds: Whether they are added.
    """
    if not views:
        return
    found: Any = tensors
    targets = views
    if NO_TENSOR in {*map(type, tensors)}:
        found = [tensor for tensor in tensors if tensor is not None]
        targets = [view for view, tensor in zip(views, tensors, strict=True) if tensor is not None]
        for view, tensor in zip(views, tensors, strict=True):
            if tensor is None and not adds:
                view.fill_(-0.0)
    if found and adds:
        torch._foreach_add_(targets, found)
    elif found:
        torch._foreach_copy_(targets, found)


def strided(name: str, grad: Tensor | None, sparse: Container[str] = ()) -> Tensor | None:
    """Return a gradient that can be added up; one that is sparse and may be so as `dense_of` says."""
    if grad is None or grad.layout is STRIDED:
        return grad
    if name not in sparse or grad.layout is not torch.sparse_coo:
        raise StepError(
            f"the gradient of {name!r} is {grad.layout}. Hint: use sparse=False, or a layer of torch's that says "
            "sparse=True: nn.Embedding, nn.EmbeddingBag."
        )
    return dense_of(grad)


def dense_of(grad: Tensor) -> Tensor:
    """Return a sparse gradient in which rows that are not there are -0.0, and nothing else is.

    Such places change no bit of what is added to them; and no sum of others is -0.0, so `sparse_again` finds them.
    """
    rows = grad.coalesce()
    dense = torch.full_like(rows, -0.0, layout=STRIDED)
    dense[rows.indices()[0]] = rows.values() + 0.0
    return dense


def sparse_again(dense: Tensor) -> Tensor:
    """Return a sum of gradients from `dense_of` as a sparse one, with the rows that some of them had."""
    absent = (dense == 0) & dense.signbit()
    rows = (~absent).flatten(1).any(dim=1).nonzero()[:, 0]
    return torch.sparse_coo_tensor(rows[None], dense[rows], dense.shape, is_coalesced=True, check_invariants=False)


def _view(flat: Tensor, segment: _Segment) -> Tensor:
    like = segment.like
    piece = flat[segment.offset : segment.offset + like.numel()]
    # The tensor's own strides (channels_last, say) where they fill the segment, else the plain order.
    return piece.as_strided(like.shape, like.stride(), segment.offset) if is_dense(like) else piece.view(like.shape)


def _cover(views: Sequence[Tensor]) -> list[Tensor]:
    """Return pieces of flat buffers that hold these views of them, and nothing else but padding; the views ascend."""
    found: list[tuple[Tensor | None, int, int]] = []
    for view in views:
        flat, start = view._base, int(view.storage_offset())
        stop = start + view.numel()
        if found and found[-1][0] is flat and start - found[-1][2] < ALIGNMENT:
            start = found.pop()[1]
        found.append((flat, start, stop))
    return [flat[start:stop] for flat, start, stop in found if flat is not None]


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


def slice_of_words(part: Tensor, start: int) -> Tensor:
    """Return what a slice of a tensor adds to the `checksum` of the whole, as a tensor that has such a checksum.

    Args:
        part: The slice.
        start: Index of its first element in the flattened whole.
    """
    before = start % max(1, 8 // part.element_size())  # elements of the same 64 bits
    return torch.cat([part.new_zeros(before), part.detach().reshape(-1)]) if before else part


def sparse_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of layers whose gradients are sparse, by name."""
    layers = [part for part in model.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse]
    chosen = {id(layer.weight) for layer in layers}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in chosen}
