"""The switches that bits depend on, and a fingerprint of what they rest on.

`set_generators` and `set_determinism` put this process's torch, Python and NumPy into a defined state.
`describe_environment` records software, CPU capability and threads for ``environment.json``: ATen, oneDNN and MKL
choose their kernels independently, so it holds what each of them looks at. `NUMERIC` names the entries that must
not change within a run.
"""

import functools
import hashlib
import platform
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from unisono.determinism import compiler
from unisono.world import numeric_variables

NUMERIC = (
    "torch", "torch_build", "device", "device_name", "threads", "cpu_capability", "cpu_flags", "machine", "variables",
    "world_size",
)  # fmt: skip
"""Entries that decide bits (``world_size`` only where the strategy is not exact); the others inform the reader."""


_SMALL_WORDS = 1 << 14
_MODULUS = 1 << 64


def set_generators(key: int) -> None:
    """Put the process-wide generators of torch (CPU and CUDA), Python and NumPy into the state named by `key`."""
    torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(key & 0x7FFFFFFFFFFFFFFF)
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)


def set_determinism(threads: int) -> None:
    """Pin what would change bits behind our back: threads per process, kernel choice, reduced precision.

    Args:
        threads: Threads of torch's CPU kernels in this process; part of the score.
    """
    torch.set_num_threads(threads)
    compiler.use_deterministic_algorithms()
    # Filling fresh memory costs time and hides reads of it; it never changes a result that was defined.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


def add_checksums(parts: Iterable[int]) -> int:
    """Return the `checksum` of all tensors from those of some of them each, or from sums of their words."""
    return sum(parts) % _MODULUS


def checksum(tensors: Iterable[Tensor]) -> int:
    """Return the sum of all bits as 64-bit integers, modulo 2**64: cheap, exact, and one wrong bit changes it.

    Each tensor counts in its own memory order; a last part of fewer than 8 bytes counts as one number.
    """
    total = 0
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        if not (flat.nbytes % 8 or flat.storage_offset() * flat.itemsize % 8) and flat.nbytes:
            total += int(flat.view(torch.int64).sum())
            continue
        raw = flat.view(torch.uint8)
        if raw.storage_offset() % 8:
            raw = raw.clone()
        whole = len(raw) // 8 * 8
        total += int(raw[:whole].view(torch.int64).sum()) if whole else 0
        total += int.from_bytes(bytes(raw[whole:].tolist()), "little") if whole < len(raw) else 0
    return total % _MODULUS


@final
class Checksum:
    """The `checksum` of the same tensors, again and again: views of the memory of small ones are kept.

    A tensor that has moved, or another one in its place, is noticed.
    """

    def __init__(self) -> None:
        self._known: list[tuple[Tensor, int, Callable[[], Any] | None]] = []

    def __call__(self, tensors: Sequence[Tensor]) -> int:
        """Return the sum of all bits; see `checksum`."""
        if len(tensors) != len(self._known):
            self._known = [_watched(tensor) for tensor in tensors]
        total = 0
        for index, tensor in enumerate(tensors):
            known, address, add_up = self._known[index]
            if tensor is not known or address_of(tensor) != address:
                self._known[index] = known, address, add_up = _watched(tensor)
            total += checksum([tensor]) if add_up is None else int(add_up())
        return total % _MODULUS


_ADDRESS_OF = getattr(torch._C, "_data_address", Tensor.data_ptr)  # without the first, nothing is shared either


def address_of(tensor: Tensor) -> int:
    """Return where a tensor's memory begins, by a look that leaves it where it is: `data_ptr` may move it.

    Memory that a checkpoint's snapshot shares with a tensor is only for reading, and `data_ptr` is for writing too.
    """
    address: int = _ADDRESS_OF(tensor)
    return address


def _watched(tensor: Tensor) -> tuple[Tensor, int, Callable[[], Any] | None]:
    """Return a tensor, its address, and what adds up its words, if they are few and lie as 64-bit words.

    Of many, a view would save little, and hold memory that a checkpoint's snapshot must know to be nobody else's.
    """
    words = tensor.detach()
    is_small = 0 < words.nbytes <= 8 * _SMALL_WORDS
    is_plain = is_small and words.is_contiguous() and not words.nbytes % 8 and not address_of(words) % 8
    return tensor, address_of(words), adder(words.view(-1).view(torch.int64)) if is_plain else None


def adder(words: Tensor) -> Callable[[], Any]:
    """Return what adds up a tensor of int64 in place; NumPy where its small overhead counts, torch where speed does."""
    if words.device.type == "cpu" and words.numel() <= _SMALL_WORDS:
        # Unlike numpy(), from_dlpack leaves the storage resizable; the ufunc spares the detour of the method sum.
        return functools.partial(np.add.reduce, np.from_dlpack(words))
    return lambda: words.sum().item()


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the `checksum` of each tensor as 16 hex digits, under its name."""
    return {name: f"{checksum([tensor]):016x}" for name, tensor in tensors.items()}


def describe_environment(*, threads: int, device: torch.device) -> dict[str, Any]:
    """Return the software and hardware that this process computes with.

    Args:
        threads: Threads per process that the run asked for.
        device: Where the model lives.
    """
    return {
        "torch": torch.__version__,
        "torch_build": hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16],
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "",
        "threads": threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_flags": _cpu_flags(),
        "machine": platform.machine(),
        "variables": numeric_variables(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_field("model name"),
        "executable": Path(sys.executable).name,
    }


def drift(recorded: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """Return one line for each numeric entry that differs: name, recorded, present."""
    return [
        f"{name}: {recorded.get(name)!r} -> {present.get(name)!r}"
        for name in NUMERIC
        if recorded.get(name) != present.get(name)
        # Another strategy is another score, which is said elsewhere.
        and (name != "world_size" or None not in (recorded.get(name), present.get(name)))
    ]


def _cpu_field(name: str) -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = (line.partition(":") for line in info.read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")


def _cpu_flags() -> str:
    """Hash the instruction sets that oneDNN and MKL choose their kernels by, with the CPU's maker."""
    flags = sorted(
        flag for flag in _cpu_field("flags").split() if flag.startswith(("avx", "fma", "amx", "sse", "f16c"))
    )
    return hashlib.sha256(" ".join([_cpu_field("vendor_id"), *flags]).encode()).hexdigest()[:16]
