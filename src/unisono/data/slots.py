"""Shared memory that loader processes put micro-batches into: written once, read where it lies, then used again.

torch sends every tensor in a new shared file: the kernel clears its pages, and two processes map them, one fault at a
time, which costs more than most transforms. Here the rank lends a slot with each task, the loader process writes the
micro-batch into it, and only where its tensors lie travels. When the last of them is gone in the rank, the slot is
lent again, its pages warm. What does not fit in (tensors that are no plain memory, types of the user's own, a rank that
keeps everything) travels as torch sends it. The memory has no name, and is gone with the processes that map it.
"""

import contextlib
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, final

import torch
import torch.multiprocessing
from torch import Tensor
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

_ALIGNMENT = 64  # bytes: as torch's own allocator on the CPU, since kernels may look at it
_STRIDE = 1 << 36  # bytes from slot to slot: the file has no blocks where nothing was written
_LEAST = 1 << 20  # bytes mapped at once


class _Place(NamedTuple):
    """A tensor in a slot: where the bytes of its storage begin, how many they are, and how it lies in them."""

    start: int
    num_bytes: int
    dtype: torch.dtype
    layout: tuple[int, tuple[int, ...], tuple[int, ...]]


class Parked(NamedTuple):
    """A micro-batch in which places stand for the tensors that are in a slot, in its first `num_bytes`."""

    slot: int
    num_bytes: int
    batch: Any


@final
class Slots:
    """So many slots, made by the rank before its loader processes are forked; each side has its own copy of this."""

    def __init__(self, count: int) -> None:
        self._file = os.memfd_create("unisono-loader", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._file).atexit = False
        os.ftruncate(self._file, count * _STRIDE)
        self._free = list(range(count))
        self._mapped: dict[int, mmap.mmap] = {}
        self._slot, self._used = -1, 0
        self._stored: dict[int, int] = {}

    @classmethod
    def make(cls, count: int) -> Self | None:
        """Return slots, or None where processes are not forked, or a file without a name cannot be had."""
        if torch.multiprocessing.get_start_method() == "fork" and hasattr(os, "memfd_create"):
            with contextlib.suppress(OSError):
                return cls(count)
        return None

    def lend(self) -> int:
        """Return a slot for the next task, the one that was used last; -1 where none is free."""
        return self._free.pop() if self._free else -1

    def open(self, parked: Parked) -> Any:
        """Return the micro-batch, its tensors in the slot; when they are gone, the slot is free again."""
        if not parked.num_bytes:
            self._free += [parked.slot] if parked.slot >= 0 else []
            return parked.batch
        memory = memoryview(self._map(parked.slot, parked.num_bytes))
        weakref.finalize(memory, self._free.append, parked.slot).atexit = False
        storages: dict[int, torch.UntypedStorage] = {}
        tensors: dict[int, Tensor] = {}

        def tensor_at(place: _Place) -> Tensor:
            known = tensors.get(id(place))
            if known is None:
                storage = storages.get(place.start)
                if storage is None:
                    storage = storages[place.start] = _bytes_of(memory, place.start, place.num_bytes)
                known = tensors[id(place)] = torch.empty(0, dtype=place.dtype).set_(storage, *place.layout)
            return known

        return _changed(parked.batch, _Place, tensor_at)

    # The loader process's side.

    def begin(self, slot: int) -> None:
        """Put what comes now into `slot`, from its start."""
        self._slot, self._used = slot, 0
        self._stored.clear()

    def collate(self, samples: list[Any]) -> Any:
        """Return what torch's ``default_collate`` returns in the rank itself, stacked in the slot where that can be."""
        return collate(samples, collate_fn_map={**default_collate_fn_map, Tensor: self._stack})

    def park(self, batch: Any) -> Parked:
        """Bring the tensors of a micro-batch into the slot, if they are not there."""
        places: dict[int, Any] = {}

        def place_of(tensor: Tensor) -> Any:
            if id(tensor) not in places:
                places[id(tensor)] = self._place(tensor)
            return places[id(tensor)]

        parked = _changed(batch, Tensor, place_of)
        is_used = any(isinstance(place, _Place) for place in places.values())
        return Parked(self._slot, self._used if is_used else 0, parked)

    def _place(self, tensor: Tensor) -> Any:
        """Return the place of a tensor; itself, if it is no plain memory or a small part of much."""
        if (
            tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_nested
            or tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
        ):  # fmt: skip
            return tensor
        storage = tensor.untyped_storage()
        num_bytes = storage.nbytes()
        if not 0 < num_bytes <= 2 * tensor.nbytes:
            return tensor
        start = self._stored.get(storage.data_ptr())
        if start is None:
            taken = self._take(num_bytes)
            if taken is None:
                return tensor
            start, fresh = taken
            fresh.copy_(storage, non_blocking=False)
            self._stored[storage.data_ptr()] = start
        return _Place(
            start, num_bytes, tensor.dtype, (int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride())
        )

    def _stack(self, tensors: Sequence[Tensor], *, collate_fn_map: Any = None) -> Tensor:
        first = tensors[0]
        is_plain = all(
            type(each) is Tensor and each.dtype == first.dtype and each.shape == first.shape
            and each.is_contiguous() and each.device.type == "cpu" and not each.requires_grad and not each.is_quantized
            for each in tensors
        )  # fmt: skip
        taken = self._take(len(tensors) * first.nbytes) if is_plain and first.nbytes else None
        if taken is None:
            return stack(tensors)
        start, storage = taken
        self._stored[storage.data_ptr()] = start
        out = torch.empty(0, dtype=first.dtype).set_(storage).view(len(tensors), *first.shape)
        return torch.stack(list(tensors), out=out)

    def _take(self, num_bytes: int) -> tuple[int, torch.UntypedStorage] | None:
        """Return memory of the slot, and where it begins; None without a slot, or where it is full."""
        start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if self._slot < 0 or start + num_bytes > _STRIDE:
            return None
        self._used = start + num_bytes
        return start, _bytes_of(memoryview(self._map(self._slot, self._used)), start, num_bytes)

    def _map(self, slot: int, num_bytes: int) -> mmap.mmap:
        known = self._mapped.get(slot)
        if known is None or len(known) < num_bytes:
            size = max(_LEAST, 1 << (num_bytes - 1).bit_length())
            known = self._mapped[slot] = mmap.mmap(self._file, size, offset=slot * _STRIDE)
        return known


def stack(tensors: Sequence[Tensor], *, collate_fn_map: Any = None) -> Tensor:
    """Stack samples as ``default_collate`` does in the rank.

    In a loader process it makes a shared file for them, and another type of samples that have several.
    """
    if tensors[0].is_nested or tensors[0].layout is not torch.strided:
        refused: Tensor = collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
        return refused
    return torch.stack(list(tensors))


def stack_in_own_memory() -> None:
    """Let ``default_collate`` do in this process, a loader's, what it does in the rank."""
    default_collate_fn_map[Tensor] = stack


def _bytes_of(memory: memoryview, start: int, num_bytes: int) -> torch.UntypedStorage:
    """Return a storage in `memory`, which it keeps alive."""
    return torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes, offset=start).untyped_storage()


def _changed(data: Any, leaf: type, change: Callable[[Any], Any]) -> Any:
    """Return `data` with `change` done to every `leaf` in it: in tuples, named tuples, lists, dictionaries."""
    kind = type(data)
    if kind is leaf:
        return change(data)
    if kind is dict:
        return {key: _changed(value, leaf, change) for key, value in data.items()}
    if kind is list or kind is tuple:
        return kind([_changed(item, leaf, change) for item in data])
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*[_changed(item, leaf, change) for item in data])
    return data
