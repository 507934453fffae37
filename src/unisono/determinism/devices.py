"""The devices that a run may compute on, and all that is asked of torch by their kind: nothing else names one.

In: a `torch.device`. What torch has for its kind (``torch.cuda``, say) is found by `module_of`. No CUDA device has run
this yet; tests run it on a device of their own (``tests/devices.py``), which adds its kind to `KINDS` and `BUILT`.
"""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity

from unisono.errors import ConfigError

KINDS: list[str] = ["cuda"]
"""Kinds of devices beside the CPU, the one that is taken where none is named first."""

_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpy", "cudaMemset")
"""How the calls begin by which CUDA is given work, as torch's profiler names them."""

_REFUSED = {
    "mps": "runs are for Linux",
    "xpu": "nobody has looked whether its kernels, generators and collectives keep the bits",
    "hpu": "nobody has looked whether its kernels, generators and collectives keep the bits",
    "mtia": "nobody has looked whether its kernels, generators and collectives keep the bits",
}


def module_of(kind: str) -> Any:
    """Return what torch has for a kind of device: ``torch.cuda``, say."""
    return torch.get_device_module(kind)


def is_gpu(device: torch.device) -> bool:
    """Whether it is one of `KINDS`, and not the CPU."""
    return device.type in KINDS


def count(kind: str | None = None) -> int:
    """Return how many devices of a kind this process sees."""
    return int(module_of(kind or KINDS[0]).device_count())


def device_at(index: int, kind: str | None = None) -> torch.device:
    """Return the device of that index, of the kind that is taken where none is named."""
    return torch.device(kind or KINDS[0], index)


def named(asked: object) -> torch.device:
    """Return the device that a user has named.

    Raises:
        ConfigError: It is neither the CPU nor a GPU that runs may be on.
    """
    found: torch.device | None = None
    with contextlib.suppress(RuntimeError, TypeError):
        found = torch.device(asked)  # type: ignore[call-overload]
    if found is not None and found.type in ("cpu", *KINDS):
        check_build(found)
        return found
    why = "" if found is None or found.type not in _REFUSED else f": {_REFUSED[found.type]}"
    raise ConfigError(
        f"expected device 'cpu', 'cuda' or 'cuda:N', got {str(asked)!r}{why}. "
        "Hint: device='cuda' is each local rank's own GPU; left out, the run takes GPUs where there are any."
    )


def check_build(device: torch.device) -> None:
    """Refuse (`ConfigError`) the GPUs of a torch that was built for ROCm, which calls them ``cuda`` as well."""
    if is_gpu(device) and torch.version.hip is not None:
        raise ConfigError(
            f"expected a GPU of CUDA, got torch {torch.__version__}, which was built for ROCm: nobody has looked "
            "whether its kernels, generators and collectives keep the bits. Hint: device='cpu' (--gpus cpu)."
        )


def make_current(device: torch.device) -> None:
    """Let a GPU be the one that this thread's ``device="cuda"`` means."""
    module_of(device.type).set_device(device)


def being_current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return what makes a device this thread's current one inside; nothing for the CPU."""
    return module_of(device.type).device(device) if is_gpu(device) else contextlib.nullcontext()


def identity(device: torch.device) -> str:
    """Return a GPU's name that is the same in every process of its host; two parts of one GPU (MIG) have two."""
    return str(module_of(device.type).get_device_properties(device).uuid)


def card(device: torch.device) -> str:
    """Return the name of the card that a GPU is, or is a part of: parts of one (MIG) have one name.

    NCCL knows GPUs by it, and takes none twice.
    """
    known = module_of(device.type).get_device_properties(device)
    places = [getattr(known, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return identity(device) if None in places else ":".join(map(str, places))


def facts(device: torch.device) -> dict[str, Any]:
    """Return what else decides a device's bits: kernels choose their grids by the number of multiprocessors, too."""
    if not is_gpu(device):
        return {}
    module = module_of(device.type)
    known = module.get_device_properties(device)
    return {
        "multiprocessors": getattr(known, "multi_processor_count", None),
        "capability": f"{getattr(known, 'major', '?')}.{getattr(known, 'minor', '?')}",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def name_of(device: torch.device) -> str:
    """Return a GPU's name; nothing for the CPU."""
    return str(module_of(device.type).get_device_name(device)) if is_gpu(device) else ""


def peak_bytes(device: torch.device) -> int:
    """Return the most memory that tensors of this process have had on a GPU at a time, in bytes."""
    return int(module_of(device.type).max_memory_allocated(device))


def forget_peak(device: torch.device) -> None:
    """Let `peak_bytes` begin with what tensors have now."""
    module_of(device.type).reset_peak_memory_stats(device)


def reserved_bytes(device: torch.device) -> int:
    """Return the most memory that this process has had of a GPU at a time, in bytes: more than its tensors."""
    return int(module_of(device.type).max_memory_reserved(device))


@contextlib.contextmanager
def limited_to(device: torch.device, num_bytes: int) -> Iterator[None]:
    """Let this process have no more of a GPU's memory inside than so many bytes (`torch.OutOfMemoryError`)."""
    module = module_of(device.type)
    module.empty_cache()
    whole = int(module.get_device_properties(device).total_memory)
    module.set_per_process_memory_fraction(min(1.0, num_bytes / whole), device)
    try:
        yield
    finally:
        module.set_per_process_memory_fraction(1.0, device)


def profiled(device: torch.device) -> list[ProfilerActivity]:
    """Return what torch's profiler watches beside the CPU."""
    return [ProfilerActivity.CUDA] if is_gpu(device) else []


def backend_of(device: torch.device, *, is_shared: bool) -> str:
    """Return torch.distributed's backend for ranks on such devices; gloo where ranks share one: NCCL joins no such."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" and not is_shared else "gloo"


def seed_all(key: int) -> None:
    """Put the generators of all GPUs of this process into one state, if it has used any.

    One state for all: what a replica draws must not depend on which of them computes it.
    """
    for module in BUILT:
        if module.is_initialized():
            module.manual_seed_all(key)


def seed(device: torch.device, key: int) -> None:
    """Put the generator of one GPU into a state."""
    index = module_of(device.type).current_device() if device.index is None else device.index
    module_of(device.type).default_generators[index].manual_seed(key & 0x7FFFFFFFFFFFFFFF)


def generator_state(device: torch.device) -> Tensor:
    """Return the state of a GPU's generator: uint8, on the CPU."""
    state: Tensor = module_of(device.type).get_rng_state(device)
    return state


def set_generator_state(device: torch.device, state: Tensor) -> None:
    """Put a state back that `generator_state` has returned."""
    module_of(device.type).set_rng_state(state, device)


def begin_rnn_anew(device: torch.device) -> None:
    """Let the dropout of RNNs on a GPU draw by what torch's generators are now: cuDNN keeps numbers of its own for it.

    Torch has them begin anew, by a number from the CPU's generator, where the state of the GPU's own has been set.
    """
    set_generator_state(device, generator_state(device))


def pinned(num_bytes: int) -> Tensor:
    """Return memory that a GPU reads and writes beside the CPU's work: uint8 (num_bytes,)."""
    return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)


def carried(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the CPU on a device; a GPU fetches it from pinned memory, and nobody waits for that.

    It lies there as ``tensor.to(device)`` would: kernels may depend on strides.
    """
    if not is_gpu(device):
        return tensor.to(device)
    strides = tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()
    staged = pinned(tensor.nbytes).view(tensor.dtype).as_strided(tensor.shape, strides).copy_(tensor)
    return staged.to(device, non_blocking=True)  # torch gives the memory to nobody else until it has arrived


def mark(device: torch.device) -> Any:
    """Return an event after all that this thread has asked of a GPU so far; its ``synchronize()`` waits for that."""
    module = module_of(device.type)
    event = module.Event()
    event.record(module.current_stream(device))
    return event


def instant(device: torch.device) -> Any:
    """Return the present as the device's work sees it, for `seconds_between`; nobody waits for a GPU."""
    if not is_gpu(device):
        return time.perf_counter()
    module = module_of(device.type)
    event = module.Event(enable_timing=True)
    event.record(module.current_stream(device))
    return event


def seconds_between(first: Any, last: Any) -> float:
    """Return the seconds between two values of `instant`; a GPU must have been waited for since the last one."""
    return last - first if isinstance(first, float) else float(first.elapsed_time(last)) / 1e3


def launched(device: torch.device, act: Callable[[], object]) -> int:
    """Return how many kernels and copies a GPU is given to do while something runs; it is waited for."""
    with torch.profiler.profile(activities=profiled(device)) as seen:
        act()
        mark(device).synchronize()
    return sum(event.name.startswith(_LAUNCHES) for event in seen.events())


@contextlib.contextmanager
def told_of_waits(device: torch.device) -> Iterator[list[str]]:
    """Yield a list that has afterwards what torch says of each time that the CPU has waited for a GPU inside.

    Torch calls this mode a prototype: events, for one, it does not tell of.
    """
    module, found = module_of(device.type), list[str]()
    before = module.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        module.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            module.set_sync_debug_mode(before)
    found += [str(each.message) for each in said if "called a synchronizing" in str(each.message)]


BUILT: list[Any] = [torch.cuda] if torch.backends.cuda.is_built() else []
"""What torch has for those kinds that this torch can compute on."""
