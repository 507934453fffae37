"""The switches that bits depend on, and a fingerprint of what they rest on.

`set_generators` and `set_determinism` put this process's torch, Python and NumPy into a defined state.
`describe_environment` records software, CPU capability and threads for ``environment.json``: ATen, oneDNN and MKL
choose their kernels independently, so it holds what each of them looks at. `NUMERIC` names the entries that must
not change within a run; torch's own flags, one by one, must not either (see `flags`).
"""

import functools
import hashlib
import operator
import platform
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from unisono.determinism import compiler, devices
from unisono.determinism.flags import check_threads, compare_flags, compiler_settings, read_flags
from unisono.determinism.probe import compare_probes, probe
from unisono.environment import numeric_variables

NUMERIC = (
    "torch", "torch_build", "device", "device_name", "device_facts", "threads", "cpu_capability", "cpu_flags",
    "machine", "variables", "world_size",
)  # fmt: skip
"""Entries that decide bits (``world_size`` only where the strategy is not exact); the others inform the reader."""

UNLIKE = (
    "hosts with the same software and the same type of CPU or GPU; for unlike CPUs --cpu-level avx2 on all hosts, or "
    "what it sets before torch is imported (ATEN_CPU_CAPABILITY=avx2, ONEDNN_MAX_CPU_ISA=AVX2, MKL_CBWR=AVX2)"
)
"""What to do where processes of one run compute on unlike hosts."""

_SMALL_WORDS, _DOT_WORDS = 1 << 14, 1 << 12
_SMALL_WORDS_OF_A_GPU, _PIECE_WORDS = 1 << 19, 1 << 22
MODULUS = 1 << 64


def set_generators(key: int) -> None:
    """Put the process-wide generators of torch (CPU and GPUs), Python and NumPy into the state named by `key`."""
    torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)
    if _GPUS:
        devices.seed_all(key & 0x7FFFFFFFFFFFFFFF)
    _seed_python(key)
    _PYTHONS.gauss_next = None
    _seed_numpy(key & 0xFFFFFFFF)


_GPUS = devices.BUILT
# What random.seed does for a whole number, without its questions.
_PYTHONS: Any = random.seed.__self__  # type: ignore[attr-defined]
_seed_python, _seed_numpy = super(random.Random, _PYTHONS).seed, np.random.seed


def set_determinism(threads: int) -> None:
    """Pin what would change bits behind our back: threads per process, kernel choice, how the compiler treats shapes.

    What a program may want otherwise, such as reduced precision, stays as it is, and is recorded: see `flags`.
    """
    torch.set_num_threads(threads)
    compiler.use_deterministic_algorithms()
    # Filling fresh memory costs time and hides reads of it; it never changes a result that was defined.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    compiler.treat_shapes_alike()


@contextmanager
def float32_precision(matmul: str | None) -> Iterator[None]:
    """Compute inside with another `torch.set_float32_matmul_precision`; TF32 of cuDNN's convolutions follows, as off
    for ``highest`` alone. None: with the flags as they are.
    """
    if matmul is None:
        yield
        return
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = matmul != "highest"
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def add_checksums(parts: Iterable[int]) -> int:
    """Return the `checksum` of all tensors from those of some of them each, or from sums of their words."""
    return sum(parts) % MODULUS


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
    return total % MODULUS


def checksum_part(tensor: Tensor) -> Tensor:
    """Return the `checksum` of one tensor where it lies, int64 (): of a GPU's nobody waits for it."""
    flat = tensor.detach().reshape(-1)
    if flat.nbytes % 8 or flat.storage_offset() * flat.itemsize % 8:
        flat = torch.nn.functional.pad(flat.view(torch.uint8), (0, -flat.nbytes % 8))
    return flat.view(torch.int64).sum()


@final
class Checksum:
    """The `checksum` of the same tensors, again and again: those that are small are added up in one pass.

    A tensor that has moved, or another one in its place, is noticed; of the same tuple only the first is asked.
    """

    def __init__(self) -> None:
        self._asked: Sequence[Tensor] = ()
        self._known: list[Tensor] = []
        self._addresses: list[int] = []
        self._small: list[Tensor] = []  # their 64-bit words
        self._others: list[Tensor] = []

    def __call__(self, tensors: Sequence[Tensor]) -> int:
        """Return the sum of all bits; see `checksum`."""
        if tensors is not self._asked or [*map(_ADDRESS_OF, tensors)] != self._addresses:
            self._follow(tensors)
        if self._small and not self._others:
            return int(torch.cat(self._small).sum().item()) % MODULUS
        total = checksum(self._others) if self._others else 0
        if self._small:
            total += int(torch.cat(self._small).sum().item())
        return total % MODULUS

    def parts(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return what `add_checksums` makes it of: int64 () each, where the tensors lie; nobody waits for them."""
        self._follow(tensors)
        return [torch.cat(words).sum() for words in _pieces(self._small)] + [*map(checksum_part, self._others)]

    def _follow(self, tensors: Sequence[Tensor]) -> None:
        is_known = tensors is self._asked or (
            len(tensors) == len(self._known) and all(map(operator.is_, tensors, self._known))
        )
        if not is_known or [*map(_ADDRESS_OF, tensors)] != self._addresses:
            self._look_at(tensors)

    def _look_at(self, tensors: Sequence[Tensor]) -> None:
        self._asked = tensors if isinstance(tensors, tuple) else ()
        self._known, self._addresses = [*tensors], [*map(_ADDRESS_OF, tensors)]
        words = [_words_of(tensor) if tensor.device == tensors[0].device else None for tensor in tensors]
        self._small = [each for each in words if each is not None]
        self._others = [tensor for tensor, each in zip(tensors, words, strict=True) if each is None]


_ADDRESS_OF = getattr(torch._C, "_data_address", Tensor.data_ptr)  # without the first, nothing is shared either


def address_of(tensor: Tensor) -> int:
    """Return where a tensor's memory begins, by a look that leaves it where it is: `data_ptr` may move it.

    Memory that a checkpoint's snapshot shares with a tensor is only for reading, and `data_ptr` is for writing too.
    """
    address: int = _ADDRESS_OF(tensor)
    return address


def _pieces(words: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return tensors of 64-bit words in lists, each of which takes not much memory in one piece."""
    found, room = list[list[Tensor]](), 0
    for each in words:
        if each.numel() > room:
            found.append([])
            room = _PIECE_WORDS
        found[-1].append(each)
        room -= each.numel()
    return found


def _words_of(tensor: Tensor) -> Tensor | None:
    """Return a view of a tensor's 64-bit words, if they are few and lie as such; else None.

    On a GPU, which takes microseconds for a kernel and nobody shares memory with, more words are few.

    Of many, a view would save little, and hold memory that a checkpoint's snapshot must know to be nobody else's.
    """
    words = tensor.detach()
    is_small = 0 < words.nbytes <= 8 * (_SMALL_WORDS if words.is_cpu else _SMALL_WORDS_OF_A_GPU)
    is_plain = is_small and words.is_contiguous() and not words.nbytes % 8 and not address_of(words) % 8
    return words.view(-1).view(torch.int64) if is_plain else None


def adder(words: Tensor) -> Callable[[], Any]:
    """Return what adds up a tensor of int64 in place, modulo 2**64.

    Torch's sum, and for few words NumPy's product with ones, which has half its overhead; they are one number, so that
    they take no room in the processor's caches. The reduction of NumPy is not taken: in a training step, whose other
    code is torch's, it finds those cold and leaves them so.
    """
    if words.device.type == "cpu" and words.numel() <= _DOT_WORDS:
        # Unlike numpy(), from_dlpack leaves the storage resizable.
        plain = np.from_dlpack(words).view(np.uint64)
        return functools.partial(plain.dot, np.broadcast_to(np.uint64(1), plain.shape))
    return lambda: words.sum().item()


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the `checksum` of each tensor as 16 hex digits, under its name."""
    return {name: f"{checksum([tensor]):016x}" for name, tensor in tensors.items()}


def describe_environment(*, threads: int, device: torch.device, computes: Iterable[torch.dtype] = ()) -> dict[str, Any]:
    """Return the software and hardware that this process computes with, and a probe of what it computes.

    Args:
        threads: Per process, on the CPU.
        device: Of the model.
        computes: In which dtypes, besides float32, the probe is to look.
    """
    check_threads(threads)
    facts = devices.facts(device)
    return {
        "torch": torch.__version__,
        "torch_build": hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16],
        "device": device.type,
        "device_name": devices.name_of(device),
        **({"device_facts": facts} if facts else {}),
        "threads": threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_flags": _cpu_flags(),
        "machine": platform.machine(),
        "variables": numeric_variables(),
        "flags": read_flags(device.type) | compiler_settings(),
        "probe": probe(device, torch.float32, *computes),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_field("model name"),
        "executable": Path(sys.executable).name,
    }


def drift(recorded: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """Return one line for each numeric entry, each flag, and each dtype of the probe that differs: name, both values.

    What was recorded by a version that knew nothing of flags, or of the probe, has none, and differs in none.
    """
    flags, probes = (
        [each[name] for each in (recorded, present) if isinstance(each.get(name), dict)] for name in ("flags", "probe")
    )
    return [
        f"{name}: {recorded.get(name)!r} -> {present.get(name)!r}"
        for name in NUMERIC
        if recorded.get(name) != present.get(name)
        # Another strategy is another score, which is said elsewhere.
        and (name != "world_size" or None not in (recorded.get(name), present.get(name)))
    ] + [
        *(compare_flags(*flags) if len(flags) == 2 else []),
        *(compare_probes(*probes) if len(probes) == 2 else []),
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
