"""Streams and events of the device of `devices`: when work on the same memory is in no order, it is refused.

The order of two streams is only what events and waits say (vector clocks): a kernel that reads or overwrites what
another stream has written, or overwrites what another one reads, without having waited for that, is refused. What the
CPU has waited for comes before all that any thread asks for later; copies to the CPU that are not waited for arrive
when their stream is waited for, and not before. Memory that is freed and used again is not looked at.
"""

import itertools
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

KIND, COUNT = "fake", 4
counted: Counter[str] = Counter()
"""``waits``: the CPU has stood still for the device; ``launches``: kernels, had they been those of a GPU; ``pageable``:
copies to the device of memory that is not pinned; ``bytes``: of the device, taken by what operations return.

Waits are counted under the name of their thread, too: a rank's, in a world of threads.
"""
_here = threading.local()
_main: dict[str, int] = {}
debug = {"mode": 0}
_lock = threading.Lock()
_pending: list[tuple["Stream", int, Callable[[], object]]] = []
_host: dict[int, int] = {}  # what the CPU has waited for, as a clock of streams


def count_wait(*, is_event: bool = False) -> None:
    """Count that the CPU waits, and say so in the debug mode, which is not told of events."""
    if debug["mode"] and not is_event:
        warnings.warn("called a synchronizing operation", stacklevel=2)
    counted["waits"] += 1
    counted[threading.current_thread().name] += 1


def current() -> int:
    """Return the index of this thread's current device."""
    return getattr(_here, "index", _main.get("index", 0))


def set_current(index: int) -> None:
    """Make a device this thread's current one.

    The main thread's is also that of threads which have chosen none: those of torch's backward pass, to which torch
    gives the device that they compute on, where it knows of more than one.
    """
    _here.index = index
    if threading.current_thread() is threading.main_thread():
        _main["index"] = index


def index_of(device: Any) -> int:
    """Return the index of a device."""
    if isinstance(device, int):
        return device
    found = torch.device(device)
    return current() if found.index is None else found.index


def _merge(into: dict[int, int], clock: dict[int, int]) -> None:
    for number, tick in clock.items():
        into[number] = max(tick, into.get(number, 0))


def arrive(clock: dict[int, int]) -> None:
    """Let the CPU wait for all that a clock holds: what was asked of streams by then has arrived."""
    with _lock:
        _merge(_host, clock)
        ready = [each for each in _pending if each[1] <= _host.get(each[0].number, 0)]
        _pending[:] = [each for each in _pending if each not in ready]
    for *_, bring in ready:
        bring()


class Stream:
    """A queue of a device; a new one knows nothing of what others do."""

    known: ClassVar["weakref.WeakSet[Stream]"] = weakref.WeakSet()
    _numbers = itertools.count(1)

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.index, self.number = current() if device is None else index_of(device), next(Stream._numbers)
        self.clock = {self.number: 0}
        Stream.known.add(self)

    def launch(self) -> tuple[int, int]:
        """Put a kernel at the end; return the stream's number and the kernel's."""
        with _lock:
            _merge(self.clock, _host)
        self.clock[self.number] += 1
        return self.number, self.clock[self.number]

    def pend(self, bring: Callable[[], object]) -> None:
        """Have something brought to the CPU by the time that this has been waited for."""
        with _lock:
            _pending.append((self, self.clock[self.number], bring))

    def wait_stream(self, other: "Stream") -> None:
        """Let what comes later here come after what the other one has been asked for."""
        _merge(self.clock, other.clock)

    def wait_event(self, event: "Event") -> None:
        """Let what comes later here come after the event."""
        _merge(self.clock, event.clock)

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Return an event after all that it has been asked for."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Let the CPU wait for it."""
        count_wait()
        arrive(self.clock)

    def __enter__(self) -> "Stream":
        self._before = streams().get(self.index)
        streams()[self.index] = self
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            del streams()[self.index]
        else:
            streams()[self.index] = self._before


class Event:
    """What has been asked of a stream until `record`."""

    def __init__(self, *_: Any, enable_timing: bool = False, **__: Any) -> None:
        self.clock: dict[int, int] = {}
        self._is_timed, self._number = enable_timing, 0

    def record(self, stream: Stream | None = None) -> None:
        """Stand after all that the stream has been asked for, by default the current one."""
        stream = stream or stream_of(current())
        self.clock, self._number = dict(stream.clock), stream.number

    def elapsed_time(self, later: "Event") -> float:
        """Return the milliseconds of the device between two events of one stream: each kernel takes one."""
        if not (self._is_timed and later._is_timed and self.query() and later.query()):
            raise RuntimeError("both events must be made to be timed, and have been reached")
        return float(later.clock[self._number] - self.clock[self._number])

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait, by default the current one."""
        (stream or stream_of(current())).wait_event(self)

    def query(self) -> bool:
        """Whether it has been reached, as far as the CPU has waited."""
        return all(tick <= _host.get(number, 0) for number, tick in self.clock.items())

    def synchronize(self) -> None:
        """Let the CPU wait for it."""
        if self.clock:
            count_wait(is_event=True)
            arrive(self.clock)


_written: dict[int, tuple[int, int]] = {}  # storage -> the kernel that has written to it last
_read: dict[int, dict[int, int]] = {}  # storage -> the last kernel of each stream that reads it since


def streams() -> dict[int, Stream]:
    """Return this thread's current streams, by device."""
    if not hasattr(_here, "streams"):
        _here.streams = {}
    return _here.streams  # type: ignore[no-any-return]


def stream_of(index: int) -> Stream:
    """Return this thread's current stream of a device: by itself the default one, which all threads share."""
    return streams().get(index) or DEFAULTS[index]


def place_of(raw: Tensor) -> int:
    """Return what names a tensor's memory."""
    return raw.untyped_storage()._cdata


def forget(fresh: list[Tensor]) -> None:
    """Take memory for new, whatever was there before."""
    for raw in fresh:
        _written.pop(place_of(raw), None)
        _read.pop(place_of(raw), None)


def order(name: str, stream: Stream, reads: list[Tensor], writes: list[Tensor], fresh: list[Tensor]) -> None:
    """Put a kernel into a stream, and refuse it where another stream's work on the same memory may not be over."""
    number, tick = stream.launch()
    forget(fresh)
    for raw in [*reads, *writes]:
        writer, when = _written.get(place_of(raw), (number, 0))
        if stream.clock.get(writer, 0) < when:
            raise RuntimeError(f"{name} on stream {number} does not wait for what stream {writer} writes")
    for raw in writes:
        for reader, when in _read.pop(place_of(raw), {}).items():
            if stream.clock.get(reader, 0) < when:
                raise RuntimeError(f"{name} on stream {number} overwrites what stream {reader} reads")
    for raw in reads:
        _read.setdefault(place_of(raw), {})[number] = tick
    for raw in [*writes, *fresh]:
        _written[place_of(raw)] = number, tick


DEFAULTS = [Stream(index) for index in range(COUNT)]
