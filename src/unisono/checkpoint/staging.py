"""Copies of a state in memory that is used again: what a checkpoint is written from, beside the training."""

import contextlib
import itertools
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from unisono.determinism import devices

Files = Mapping[str, Mapping[str, Tensor]]
_ALIGNMENT = 64
_HUGE = 2 << 20
_is_shared = getattr(torch._C, "_is_cow_tensor", lambda tensor: False)


@final
class Staging:
    """One buffer in memory, used again for every checkpoint: fresh memory costs ten times the copy."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return self._buffer.numel()

    def reserve(self, num_bytes: int, *, pinned: bool = False) -> None:
        """Make room, and let the system provide the memory now; `pinned` memory a GPU can write to directly."""
        if num_bytes <= self.num_bytes and (not pinned or self._buffer.is_pinned()):
            return
        self._buffer = torch.empty(0, dtype=torch.uint8)  # the old one goes first
        if pinned:
            self._buffer = devices.pinned(num_bytes)
            return
        memory = mmap.mmap(-1, num_bytes + _HUGE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages: slower, not wrong
                memory.madvise(mmap.MADV_HUGEPAGE)
        buffer = torch.frombuffer(memory, dtype=torch.uint8)
        start = -buffer.data_ptr() % _HUGE
        self._buffer = buffer[start : start + num_bytes]
        self._buffer[:: mmap.PAGESIZE] = 0

    def lay_out(self, files: Files) -> list[tuple[str, str, int]]:
        """Make room for copies of all tensors, and return file, name and offset of each; older copies are lost."""
        tensors = [(file, name, tensor) for file, part in files.items() for name, tensor in part.items()]
        self.reserve(bytes_of(files), pinned=bool(_gpus(files)))
        ends = itertools.accumulate((_padded(tensor.nbytes) for _, _, tensor in tensors), initial=0)
        return [(file, name, offset) for (file, name, _), offset in zip(tensors, ends, strict=False)]

    def put(self, tensor: Tensor, offset: int) -> Tensor:
        """Return a copy of one tensor, made at an offset that `lay_out` has named; complete after `finish`.

        Shape, dtype and values are kept, not strides: the copy is contiguous, on the CPU.
        """
        return _copy(tensor.detach(), self._buffer[offset : offset + tensor.nbytes])

    @staticmethod
    def finish(files: Files) -> None:
        """Return when all that was `put` has arrived, from every device that holds some of it."""
        for event in [devices.mark(device) for device in _gpus(files)]:
            event.synchronize()


def bytes_of(files: Files) -> int:
    """Return the bytes that a copy of all tensors takes."""
    return sum(_padded(tensor.nbytes) for part in files.values() for tensor in part.values())


def taken_by(files: Files) -> int:
    """Return the bytes of memory that a copy costs: torch rounds what a GPU can write to up to a power of two."""
    needed = bytes_of(files)
    return 1 << (needed - 1).bit_length() if needed and _gpus(files) else needed


def is_roomy(num_bytes: int, meminfo: Path = Path("/proc/meminfo")) -> bool:
    """Whether a buffer of this size leaves half of the machine's available memory free; True where it is not told."""
    try:
        lines = meminfo.read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return True
    return num_bytes <= available // 2


def _copy(tensor: Tensor, place: Tensor) -> Tensor:
    target = place.view(tensor.dtype).view(tensor.shape)
    if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        if _is_shared(tensor):  # an array would have its own memory
            target.copy_(tensor)
        elif tensor.nbytes:  # as raw bytes: the C library's copy, which goes around the caches for large tensors
            np.copyto(place.numpy(), tensor.reshape(-1).view(torch.uint8).numpy())
    else:
        target.copy_(tensor, non_blocking=True)
    return target


def _gpus(files: Files) -> list[torch.device]:
    found = dict.fromkeys(tensor.device for part in files.values() for tensor in part.values())
    return [device for device in found if devices.is_gpu(device)]


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
