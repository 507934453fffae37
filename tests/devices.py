"""A device in Python, with the CPU's numbers, that is as strict as a GPU and counts what would be slow on one.

`install` registers it with torch as ``fake``, four of them, for the rest of the process: call it before the first
backward pass, in a process of its own (`ranks.run_processes`). A tensor of it refuses to meet one of the CPU or of
another index. Copies to the CPU that are not waited for arrive when their stream is waited for, and not before. Each
device has a generator of its own.
Work goes to streams, see `device_streams`.
"""

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from device_launches import NO_KERNEL, kernels
from device_streams import (
    COUNT,
    DEFAULTS,
    KIND,
    Event,
    Stream,
    arrive,
    count_wait,
    counted,
    current,
    debug,
    forget,
    index_of,
    order,
    place_of,
    set_current,
    stream_of,
    streams,
)  # fmt: skip
from unisono.determinism import devices

_lock = threading.Lock()
_pinned: set[int] = set()
MEMORY = 1 << 40  # bytes of a device
_COPIES = ("aten::copy_", "aten::_to_copy", "aten::_foreach_copy_")


class _Current:
    def __init__(self, device: Any) -> None:
        self._index = index_of(device)

    def __enter__(self) -> None:
        self._before = current()
        set_current(self._index)

    def __exit__(self, *_: object) -> None:
        set_current(self._before)


class Module:
    """What torch has of a kind of device, under ``torch.fake``."""

    Event, Stream = Event, Stream
    device = _Current

    def __init__(self) -> None:
        self.default_generators = tuple(torch.Generator() for _ in range(COUNT))
        self._rnns: dict[int, torch.Generator] = {}
        self.parts = 1  # of each card: as many devices are one
        self._room = self._most = 0  # bytes of a tensor: that there may be, and that there have been
        self.is_hollow = False  # whether tensors have shapes alone: no numbers, and no memory

    is_available = is_initialized = staticmethod(lambda: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    device_count = staticmethod(lambda: COUNT)
    current_device = staticmethod(current)
    _lazy_init = staticmethod(lambda: None)
    max_memory_allocated = staticmethod(lambda device=None: 3 << 20)
    reset_peak_memory_stats = staticmethod(lambda device=None: None)
    empty_cache = staticmethod(lambda: None)
    get_device_name = staticmethod(lambda device=None: "a fake device")
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16, torch.float16])

    get_sync_debug_mode = staticmethod(lambda: debug["mode"])

    def set_sync_debug_mode(self, mode: int | str) -> None:
        """Warn of every wait, or of none."""
        debug["mode"] = {"default": 0, "warn": 1}.get(str(mode), mode)  # type: ignore[assignment]

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        """Refuse tensors that are larger than this part of the memory."""
        self._room = int(fraction * MEMORY) if fraction < 1 else 0

    def max_memory_reserved(self, device: Any = None) -> int:
        """Return the bytes of the largest tensor so far."""
        return self._most

    def take(self, tensors: list[Tensor]) -> None:
        """Count memory that a kernel has written to."""
        sizes = [tensor.nbytes for tensor in tensors]
        counted["bytes"] += sum(sizes)
        self._most = max([self._most, *sizes])
        if self._room and max(sizes, default=0) > self._room:
            raise torch.OutOfMemoryError(f"{self._room} bytes are too few")

    def set_device(self, device: Any) -> None:
        """Make a device this thread's current one."""
        set_current(index_of(device))

    def synchronize(self, device: Any = None) -> None:
        """Wait for one device."""
        count_wait()
        index = current() if device is None else index_of(device)
        for stream in [each for each in Stream.known if each.index == index]:
            arrive(stream.clock)

    def current_stream(self, device: Any = None) -> Stream:
        """Return this thread's current stream of a device."""
        return stream_of(current() if device is None else index_of(device))

    def default_stream(self, device: Any = None) -> Stream:
        """Return the stream that is current where none is chosen."""
        return DEFAULTS[current() if device is None else index_of(device)]

    def stream(self, stream: Stream) -> Any:
        """Make a stream this thread's current one inside."""
        return contextlib.nullcontext() if stream is None else stream

    def set_stream(self, stream: Stream) -> None:
        """Make a stream this thread's current one."""
        streams()[stream.index] = stream

    def get_device_properties(self, device: Any = None) -> Any:
        """Return what identifies a device."""
        index = current() if device is None else index_of(device)
        place = {"pci_domain_id": 0, "pci_bus_id": index // self.parts, "pci_device_id": 0}
        return SimpleNamespace(
            uuid=f"fake-{index}", multi_processor_count=1, major=1, minor=0, total_memory=MEMORY, **place
        )

    def manual_seed_all(self, seed: int) -> None:
        """Put all generators into one state."""
        for generator in self.default_generators:
            generator.manual_seed(seed)
        self._rnns.clear()

    def get_rng_state(self, device: Any = "fake") -> Tensor:
        """Return the state of a generator."""
        return self.default_generators[index_of(device)].get_state()

    def set_rng_state(self, state: Tensor, device: Any = "fake") -> None:
        """Put a state back."""
        self.default_generators[index_of(device)].set_state(state)
        self._rnns.pop(index_of(device), None)

    def rnn_generator(self, device: Any) -> torch.Generator:
        """Return what cuDNN draws an RNN's dropout from: its own, until the device's generator has been set."""
        index = index_of(device)
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
        if device is None or device.type != KIND or index_of(device) == self.index:
            return super().to(*args, **kwargs)
        moved = _Move.apply(self, index_of(device))
        return torch.Tensor.to(moved, *args, **kwargs)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"FakeTensor({self.raw!r}, {self.device})"

    def tolist(self) -> Any:
        """Return the numbers in lists."""
        return self.cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return the memory of the numbers, which may be freed and allocated again."""
        return self.raw.untyped_storage()

    def data_ptr(self) -> int:
        """Return where the numbers lie."""
        return self.raw.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, is_composed, is_random, _ = _facts(func)
        if is_composed:
            return func.decompose(*args, **(kwargs or {}))  # in inference mode torch leaves that to us
        kwargs = dict(kwargs or {})
        found = [leaf for leaf in _leaves([args, [*kwargs.values()]]) if isinstance(leaf, torch.Tensor)]
        ours = [tensor for tensor in found if isinstance(tensor, FakeTensor)]
        index = _check(name, found, ours)
        if name in ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::is_nonzero"):
            count_wait()
            arrive(stream_of(index).clock)
        elif name in ("aten::native_dropout", "aten::native_dropout_backward"):
            return _dropout(name, index, *args)
        if name in _COPIES:
            return _copy(func, name, args, kwargs)
        device = kwargs.get("device")
        if device is not None:
            # Of a tensor's own device torch's code in C++ names the first one: its true index is the tensor's.
            index, kwargs["device"] = index if ours else index_of(device), torch.device(_memory())
        kwargs.pop("pin_memory", None)
        with _drawing(index, is_random=is_random):
            out = func(*_mapped(_raw, args), **{key: _mapped(_raw, value) for key, value in kwargs.items()})
        counted["launches"] += kernels(name, args, out)
        reads, writes, fresh = _touched(func, args, kwargs, out)
        if name.partition("::")[2] not in NO_KERNEL:
            order(name, stream_of(index), reads, writes, fresh)
        else:
            forget(fresh)
        MODULE.take(fresh)
        return _wrapped(out, ours, index)


@functools.cache
def _facts(func: Any) -> tuple[str, bool, bool, list[tuple[str, bool]]]:
    """Return an operation's name, whether it is made of others, whether it is random, and which arguments it writes."""
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    schema = func._schema
    arguments = [(each.name, each.alias_info is not None and each.alias_info.is_write) for each in schema.arguments]
    return schema.name, composed, torch.Tag.nondeterministic_seeded in func.tags, arguments


def _leaves(tree: Any) -> list[Any]:
    """Return what is in lists and tuples, which are all that operations take and return: quicker than torch's own."""
    if not isinstance(tree, (list, tuple)):
        return [tree]
    return [leaf for each in tree for leaf in (_leaves(each) if isinstance(each, (list, tuple)) else (each,))]


def _mapped(act: Callable[[Any], Any], tree: Any) -> Any:
    """Do something with each leaf of lists and tuples."""
    return type(tree)([_mapped(act, each) for each in tree]) if isinstance(tree, (list, tuple)) else act(tree)


def _memory() -> str:
    """Return torch's device that holds what the tensors of this one have."""
    return "meta" if MODULE.is_hollow else "cpu"


def _told(raw: Tensor) -> Tensor:
    """Return what the CPU is told of numbers: 0 where there are none."""
    return torch.zeros(raw.shape, dtype=raw.dtype) if raw.is_meta else raw


class _Move(torch.autograd.Function):
    """From one device to another; the gradient goes back."""

    @staticmethod
    def forward(ctx: Any, tensor: FakeTensor, index: int) -> Tensor:
        ctx.index = tensor.index
        return _moved(tensor, index)

    @staticmethod
    def backward(ctx: Any, gradient: FakeTensor) -> Any:  # type: ignore[override]
        return _moved(gradient, ctx.index), None


def _moved(tensor: FakeTensor, index: int) -> FakeTensor:
    """Copy to another device; the streams of both wait for each other."""
    counted["launches"] += 1
    made, stream, source = tensor.raw.clone(), stream_of(index), stream_of(tensor.index)
    stream.wait_stream(source)
    order("aten::_to_copy", stream, [tensor.raw], [], [made])
    source.wait_stream(stream)
    return FakeTensor(made, index)


def _touched(func: Any, args: Any, kwargs: Any, out: Any) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return what an operation reads, what it writes to, and its memory that is new."""
    reads: list[Tensor] = []
    writes: list[Tensor] = []
    for number, (name, is_written) in enumerate(_facts(func)[3]):
        given = args[number] if number < len(args) else kwargs.get(name)
        tensors = [each.raw for each in _leaves(given) if isinstance(each, FakeTensor)]
        (writes if is_written else reads).extend(tensors)
    known = {place_of(raw) for raw in [*reads, *writes]}
    made = [each for each in _leaves(out) if isinstance(each, torch.Tensor)]
    return reads, writes, [each for each in made if place_of(each) not in known]


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

    return _mapped(wrap, out)


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
        made = first.raw * second.raw
        order(name, stream_of(index), [first.raw, second.raw], [], [made])
        return FakeTensor(made, index)
    with _drawing(index, is_random=True):
        mask = torch.empty_like(first.raw).bernoulli_(1 - second).div_(1 - second)
    made = first.raw * mask
    order(name, stream_of(index), [first.raw], [], [made, mask])
    return FakeTensor(made, index), FakeTensor(mask, index)


def _copy(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Copy between devices: what is waited for arrives at once, the rest with its device's next wait."""
    if name == "aten::_to_copy":
        return _to_copy(func, args[0], kwargs)
    if name == "aten::_foreach_copy_":
        return _copy_all(name, *args)
    target, source, *rest = args
    is_waited = not (rest[0] if rest else kwargs.get("non_blocking", False))
    if isinstance(target, FakeTensor):
        counted["launches"] += 1
        _look_where(source)
        stream, reads = stream_of(target.index), list[Tensor]()
        if isinstance(source, FakeTensor):
            reads.append(source.raw)
            if source.index != target.index:  # both devices' streams wait for each other
                stream.wait_stream(stream_of(source.index))
        elif is_waited:
            count_wait()
            arrive(stream.clock)
        target.raw.copy_(_raw(source))
        order(name, stream, reads, [target.raw], [])
        if isinstance(source, FakeTensor) and source.index != target.index:
            stream_of(source.index).wait_stream(stream)
        return target
    value = _told(source.raw.clone())
    _fetch(name, source, is_waited, lambda: target.copy_(value))
    return target


def _look_where(source: Tensor) -> None:
    """Count what comes from memory of the CPU that is not pinned: a GPU's driver copies it once more."""
    counted["pageable"] += not isinstance(source, FakeTensor) and source.dim() > 0 and place_of(source) not in _pinned


def _pin(num_bytes: int) -> Tensor:
    made = torch.zeros(num_bytes, dtype=torch.uint8)
    _pinned.add(place_of(made))
    return made


def _launched(device: torch.device, act: Callable[[], object]) -> int:
    before = counted["launches"]
    act()
    return counted["launches"] - before


def _copy_all(name: str, targets: list[Tensor], sources: list[Tensor], *_: Any) -> None:
    """Copy tensors in as many kernels as CUDA would, within one device."""
    both = [each for each in (*targets, *sources) if isinstance(each, FakeTensor)]
    if len(both) < len(targets) + len(sources) or len({each.index for each in both}) > 1:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
        return
    counted["launches"] += kernels(name, (targets, sources), None)
    torch._foreach_copy_([_raw(each) for each in targets], [_raw(each) for each in sources])
    order(name, stream_of(both[0].index), [_raw(each) for each in sources], [_raw(each) for each in targets], [])


def _fetch(name: str, source: FakeTensor, is_waited: bool, bring: Callable[[], object]) -> None:
    """Ask for a copy to the CPU, at once or with its stream's next wait."""
    stream = stream_of(source.index)
    order(name, stream, [source.raw], [], [])
    if is_waited:
        count_wait()
        arrive(stream.clock)
        bring()
    else:
        stream.pend(bring)


def _to_copy(func: Any, source: Tensor, kwargs: dict[str, Any]) -> Any:
    device = torch.device(kwargs.pop("device", None) or source.device)
    is_waited = not kwargs.pop("non_blocking", False)
    kwargs.pop("pin_memory", None)
    value = func(_raw(source), **kwargs)
    if device.type == KIND:
        value = value.to(_memory())
        counted["launches"] += 1
        _look_where(source)
        index = source.index if isinstance(source, FakeTensor) else index_of(device)
        if not isinstance(source, FakeTensor) and is_waited:
            count_wait()
            arrive(stream_of(index).clock)
        order("aten::_to_copy", stream_of(index), [source.raw] if isinstance(source, FakeTensor) else [], [], [value])
        # Between indices `to` has moved it before; torch's backward pass names the first one for all of them.
        return FakeTensor(value, index)
    assert isinstance(source, FakeTensor)
    value = _told(value)
    late = torch.empty_like(value)
    _fetch("aten::_to_copy", source, is_waited, lambda: late.copy_(value))
    return late


@functools.cache
def install() -> None:
    """Register the device for the rest of this process."""
    from torch.utils import backend_registration

    register = backend_registration._setup_privateuseone_for_python_backend
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        register(KIND, backend_module=MODULE)

    def empty(size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
              memory_format: Any = None) -> Tensor:  # fmt: skip
        layout = memory_format or torch.contiguous_format
        raw = torch.empty(size, dtype=dtype, memory_format=layout, device=_memory())
        forget([raw])
        return FakeTensor(raw, index_of(device))

    def strided(size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
                pin_memory: Any = None) -> Tensor:  # fmt: skip
        raw = torch.empty_strided(size, stride, dtype=dtype, device=_memory())
        forget([raw])
        return FakeTensor(raw, index_of(device))

    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", strided, "PrivateUse1")
    library.impl("_copy_from", lambda source, target, non_blocking=False: _copy(
        None, "aten::copy_", (target, source, non_blocking), {}), "PrivateUse1")  # fmt: skip
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # nothing is cast
    globals()["_libraries"] = library, everything
    devices.KINDS.insert(0, KIND)
    devices.BUILT.append(MODULE)
    devices.pinned, devices.launched = _pin, _launched
