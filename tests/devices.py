"""A device in Python, with the CPU's numbers, that is as strict as a GPU and counts what would be slow on one.

`install` registers it with torch as ``fake``, four of them, for the rest of the process: call it before the first
backward pass, in a process of its own (`ranks.run_processes`). A tensor of it refuses to meet one of the CPU or of
another index. Copies to the CPU that are not waited for arrive when their device is waited for, and not before. Each
device has a generator of its own.
"""

import threading
import warnings
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from unisono.determinism import devices

KIND, COUNT = "fake", 4
counted: Counter[str] = Counter()
"""``waits``: the CPU has stood still for the device; ``launches``: kernels, had they been those of a GPU.

Waits are counted under the name of their thread, too: a rank's, in a world of threads.
"""
_here = threading.local()
_lock = threading.Lock()
_pending: dict[int, list[Callable[[], object]]] = {index: [] for index in range(COUNT)}
_NO_KERNEL = (
    "view", "_unsafe_view", "detach", "alias", "t", "transpose", "expand", "as_strided", "slice", "select", "split",
    "split_with_sizes", "unbind", "squeeze", "unsqueeze", "permute", "empty_like", "empty", "empty_strided",
    "new_empty", "_reshape_alias", "unfold", "diagonal", "view_as_real", "lift_fresh", "is_same_size", "set_",
    "record_stream",
)  # fmt: skip
_COPIES = ("aten::copy_", "aten::_to_copy", "aten::_foreach_copy_")


def count_wait() -> None:
    """Count that the CPU waits."""
    counted["waits"] += 1
    counted[threading.current_thread().name] += 1


def drain(index: int) -> None:
    """Let what was asked of a device arrive."""
    with _lock:
        waiting, _pending[index] = _pending[index], []
    for arrive in waiting:
        arrive()


class Event:
    """What has been asked of a device until `record`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._index: int | None = None

    def record(self, stream: Any = None) -> None:
        """Name the device."""
        self._index = current() if stream is None else stream.index

    def synchronize(self) -> None:
        """Wait for it."""
        if self._index is not None:
            count_wait()
            drain(self._index)


def current() -> int:
    """Return the index of this thread's current device."""
    return getattr(_here, "index", 0)


class _Current:
    def __init__(self, device: Any) -> None:
        self._index = _index_of(device)

    def __enter__(self) -> None:
        self._before, _here.index = current(), self._index

    def __exit__(self, *_: object) -> None:
        _here.index = self._before


def _index_of(device: Any) -> int:
    found = torch.device(KIND, device) if isinstance(device, int) else torch.device(device)
    return current() if found.index is None else found.index


class Module:
    """What torch has of a kind of device, under ``torch.fake``."""

    Event = Event
    device = _Current

    def __init__(self) -> None:
        self.default_generators = tuple(torch.Generator() for _ in range(COUNT))
        self._rnns: dict[int, torch.Generator] = {}

    is_available = is_initialized = staticmethod(lambda: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    device_count = staticmethod(lambda: COUNT)
    current_device = staticmethod(current)
    _lazy_init = staticmethod(lambda: None)
    max_memory_allocated = staticmethod(lambda device=None: 0)
    get_device_name = staticmethod(lambda device=None: "a fake device")
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16, torch.float16])

    def set_device(self, device: Any) -> None:
        """Make a device this thread's current one."""
        _here.index = _index_of(device)

    def synchronize(self, device: Any = None) -> None:
        """Wait for one device."""
        count_wait()
        drain(current() if device is None else _index_of(device))

    def current_stream(self, device: Any = None) -> Any:
        """Return the one stream of a device."""
        return SimpleNamespace(index=current() if device is None else _index_of(device))

    def get_device_properties(self, device: Any = None) -> Any:
        """Return what identifies a device."""
        index = current() if device is None else _index_of(device)
        return SimpleNamespace(uuid=f"fake-{index}", multi_processor_count=1, major=1, minor=0)

    def manual_seed_all(self, seed: int) -> None:
        """Put all generators into one state."""
        for generator in self.default_generators:
            generator.manual_seed(seed)
        self._rnns.clear()

    def get_rng_state(self, device: Any = "fake") -> Tensor:
        """Return the state of a generator."""
        return self.default_generators[_index_of(device)].get_state()

    def set_rng_state(self, state: Tensor, device: Any = "fake") -> None:
        """Put a state back."""
        self.default_generators[_index_of(device)].set_state(state)
        self._rnns.pop(_index_of(device), None)

    def rnn_generator(self, device: Any) -> torch.Generator:
        """Return what cuDNN draws an RNN's dropout from: its own, until the device's generator has been set."""
        index = _index_of(device)
        if index not in self._rnns:
            self._rnns[index] = torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        return self._rnns[index]


MODULE = Module()


class FakeTensor(torch.Tensor):
    """A tensor of the device: `raw` holds its numbers, on the CPU."""

    raw: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: Tensor, index: int) -> "FakeTensor":
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
            device=torch.device(KIND, 0),  # torch's backward pass knows of one device of a kind in Python
        )  # fmt: skip

    def __init__(self, raw: Tensor, index: int) -> None:
        self.raw, self.index = raw, index

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Return the device, with its own index."""
        return torch.device(KIND, self.index)

    @property
    def data(self) -> Tensor:
        """Return the numbers without a graph; set, other numbers of the same shape."""
        return self.detach()

    @data.setter
    def data(self, value: "FakeTensor") -> None:
        self.raw, self.index = value.raw, value.index

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Do what every tensor does, and move between devices of different index."""
        device, *_ = torch._C._nn._parse_to(*args, **{k: v for k, v in kwargs.items() if k != "copy"})
        if device is None or device.type != KIND or _index_of(device) == self.index:
            return super().to(*args, **kwargs)
        moved = _Move.apply(self, _index_of(device))
        return torch.Tensor.to(moved, *args, **kwargs)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"FakeTensor({self.raw!r}, {self.device})"

    def tolist(self) -> Any:
        """Return the numbers in lists."""
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        """Return where the numbers lie."""
        return self.raw.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            return func.decompose(*args, **(kwargs or {}))  # in inference mode torch leaves that to us
        kwargs = dict(kwargs or {})
        found = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        ours = [tensor for tensor in found if isinstance(tensor, FakeTensor)]
        index = _check(name, found, ours)
        if name in ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::is_nonzero"):
            count_wait()
            drain(index)
        elif name in ("aten::native_dropout", "aten::native_dropout_backward"):
            return _dropout(name, index, *args)
        elif name not in _COPIES and name.partition("::")[2] not in _NO_KERNEL:
            counted["launches"] += len(args[0]) if "_foreach_" in name else 1
        if name in _COPIES:
            return _copy(func, name, args, kwargs)
        device = kwargs.get("device")
        if device is not None:
            index, kwargs["device"] = _index_of(device), torch.device("cpu")
        kwargs.pop("pin_memory", None)
        with _drawing(index, is_random=torch.Tag.nondeterministic_seeded in func.tags):
            out = func(*pytree.tree_map(_raw, args), **pytree.tree_map(_raw, kwargs))
        return _wrapped(out, ours, index)


class _Move(torch.autograd.Function):
    """From one device to another; the gradient goes back."""

    @staticmethod
    def forward(ctx: Any, tensor: FakeTensor, index: int) -> Tensor:
        ctx.index = tensor.index
        counted["launches"] += 1
        return FakeTensor(tensor.raw.clone(), index)

    @staticmethod
    def backward(ctx: Any, gradient: FakeTensor) -> Any:  # type: ignore[override]
        return FakeTensor(gradient.raw.clone(), ctx.index), None


def _check(name: str, found: list[Tensor], ours: list[FakeTensor]) -> int:
    """Refuse what a GPU's kernels refuse; return the index of the device."""
    indices = {tensor.index for tensor in ours}
    if name not in _COPIES:
        strangers = [tensor for tensor in found if not isinstance(tensor, FakeTensor) and tensor.dim() > 0]
        if strangers or len(indices) > 1:
            where = sorted({str(tensor.device) for tensor in found})
            raise RuntimeError(f"{name}: expected all tensors on the same device, got {where}")
    return min(indices, default=current())


def _raw(leaf: Any) -> Any:
    return leaf.raw if isinstance(leaf, FakeTensor) else leaf


def _wrapped(out: Any, ours: list[FakeTensor], index: int) -> Any:
    known = {id(tensor.raw): tensor for tensor in ours}

    def wrap(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return known[id(leaf)] if id(leaf) in known else FakeTensor(leaf, index)

    return pytree.tree_map(wrap, out)


class _drawing:
    """Lets what is random inside draw from a device's generator."""

    def __init__(self, index: int, *, is_random: bool) -> None:
        self._own = MODULE.default_generators[index] if is_random else None

    def __enter__(self) -> None:
        if self._own is not None:
            _lock.acquire()
            self._before = torch.default_generator.get_state()
            torch.default_generator.set_state(self._own.get_state())

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(self._before)
            _lock.release()


def _dropout(name: str, index: int, first: FakeTensor, second: Any, third: Any = None) -> Any:
    """Do what the CPU's dropout does, which is not native there: the mask holds its factors."""
    counted["launches"] += 1
    if name == "aten::native_dropout_backward":
        return FakeTensor(first.raw * second.raw, index)
    with _drawing(index, is_random=True):
        mask = torch.empty_like(first.raw).bernoulli_(1 - second).div_(1 - second)
    return FakeTensor(first.raw * mask, index), FakeTensor(mask, index)


def _copy(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Copy between devices: what is waited for arrives at once, the rest with its device's next wait."""
    if name == "aten::_to_copy":
        return _to_copy(func, args[0], kwargs)
    if name == "aten::_foreach_copy_":
        for target, source in zip(args[0], args[1], strict=True):
            target.copy_(source)
        return None
    target, source, *rest = args
    is_waited = not (rest[0] if rest else kwargs.get("non_blocking", False))
    if isinstance(target, FakeTensor):
        counted["launches"] += 1
        if not isinstance(source, FakeTensor) and is_waited:
            count_wait()
        target.raw.copy_(_raw(source))
        return target
    index, value = source.index, source.raw.clone()
    if is_waited:
        count_wait()
        drain(index)
        target.copy_(value)
    else:
        with _lock:
            _pending[index].append(lambda: target.copy_(value))
    return target


def _to_copy(func: Any, source: Tensor, kwargs: dict[str, Any]) -> Any:
    device = torch.device(kwargs.pop("device", None) or source.device)
    is_waited = not kwargs.pop("non_blocking", False)
    kwargs.pop("pin_memory", None)
    value = func(_raw(source), **kwargs)
    if device.type == KIND:
        counted["launches"] += 1
        if not isinstance(source, FakeTensor) and is_waited:
            count_wait()
        # Between indices `to` has moved it before; torch's backward pass names the first one for all of them.
        return FakeTensor(value, source.index if isinstance(source, FakeTensor) else _index_of(device))
    assert isinstance(source, FakeTensor)
    index = source.index
    if is_waited:
        count_wait()
        drain(index)
        return value
    late = torch.empty_like(value)
    with _lock:
        _pending[index].append(lambda: late.copy_(value))
    return late


def install() -> None:
    """Register the device for the rest of this process."""
    from torch.utils import backend_registration

    register = backend_registration._setup_privateuseone_for_python_backend
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        register(KIND, backend_module=MODULE)

    def empty(size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
              memory_format: Any = None) -> Tensor:  # fmt: skip
        raw = torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format)
        return FakeTensor(raw, _index_of(device))

    def strided(size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
                pin_memory: Any = None) -> Tensor:  # fmt: skip
        return FakeTensor(torch.empty_strided(size, stride, dtype=dtype), _index_of(device))

    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", strided, "PrivateUse1")
    library.impl("_copy_from", lambda source, target, non_blocking=False: _copy(
        None, "aten::copy_", (target, source, non_blocking), {}), "PrivateUse1")  # fmt: skip
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # nothing is cast
    globals()["_libraries"] = library, everything
    devices.add_kind(KIND)
    devices.pinned = lambda num_bytes: torch.zeros(num_bytes, dtype=torch.uint8)
