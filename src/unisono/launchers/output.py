"""The workers' output: whole lines, each with its rank, without control characters.

In: the read ends of the workers' pipes. Out: bytes on the launcher's own stdout and stderr. One thread copies
for all workers, so that two lines can never mix. Knows nothing about processes. Must not import torch.
"""

import contextlib
import errno
import math
import os
import select
import selectors
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from unisono.launchers.supervision.stacks import DumpFilter
from unisono.system.messages import CONTROL

_READ_BYTES = 65536
_LINE_BYTES = 65536
# A process that escaped into another session may write for ever: never drain more than any pipe holds.
_DRAIN_READS = 32
_TOGETHER_S = 0.05
"""Lines that come within this time after a pause stand in the order of the ranks: each says where it is."""


@final
@dataclass(slots=True)
class LineCleaner:
    """Cuts one stream into clean lines.

    A carriage return starts the line anew, as on a terminal: only the last state of a progress bar remains,
    and it takes no memory. A line longer than 64 KiB comes in pieces. See `DumpFilter` for what is left out.
    """

    prefix: bytes
    _pending: bytes = b""
    _dump: DumpFilter = field(default_factory=DumpFilter)

    def feed(self, data: bytes) -> bytes:
        """Return the finished lines that `data` completes, each with prefix and newline."""
        *lines, pending = (self._pending + data).split(b"\n")
        # The last return may be half of "\r\n", or a bar's end whose text is still on show: keep what it
        # ended.
        start = pending.rstrip(b"\r").rfind(b"\r") + 1
        self._pending = pending[start:]
        if len(self._pending) >= _LINE_BYTES:
            lines.append(self._pending)
            self._pending = b""
        return b"".join(map(self._finish, lines))

    def flush(self) -> bytes:
        """Return the unfinished last line, if any, as a line."""
        pending, self._pending = self._pending, b""
        finished = self._finish(pending) if pending else b""
        return finished + self._joined(self._dump.flush())

    def _finish(self, line: bytes) -> bytes:
        visible = line.rstrip(b"\r").rpartition(b"\r")[2]
        return self._joined(self._dump.feed(CONTROL.sub(b"", visible)))

    def _joined(self, lines: list[bytes]) -> bytes:
        return b"".join(self.prefix + line + b"\n" for line in lines)


@final
@dataclass(slots=True)
class _Stream:
    read_fd: int
    target_fd: int | None
    cleaner: LineCleaner
    file_fd: int | None = None
    is_closed: bool = False

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            os.close(self.read_fd)
            if self.file_fd is not None:
                os.close(self.file_fd)


@final
@dataclass(slots=True)
class OutputPump:
    """Copies the workers' pipes to the launcher's own output until `finish`."""

    #: Called once, from the pump's thread, when nobody reads the launcher's output any more.
    on_broken: Callable[[], None]
    on_done: Callable[[], None]  #: Called from the pump's thread after the last byte.
    _streams: list[_Stream] = field(default_factory=list)
    _dead_targets: set[int] = field(default_factory=set)
    _stop_fds: tuple[int, int] | None = None

    def open(self, prefix: str, target_fd: int | None, file_fd: int | None = None) -> int:
        """Return the write end of a new pipe whose lines go to `target_fd`; the caller closes it.

        Args:
            prefix: Text in front of every line.
            target_fd: Where the lines go; None drops them.
            file_fd: A file that gets the bytes as they are, closed at the end; None for none.
        """
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        self._streams.append(_Stream(read_fd, target_fd, LineCleaner(prefix.encode()), file_fd))
        if self._stop_fds is not None:
            os.write(self._stop_fds[1], b"+")  # the thread is to look for it
        return write_fd

    def start(self) -> None:
        """Start to copy; pipes that are opened later are copied too."""
        self._stop_fds = os.pipe()
        threading.Thread(target=self._run, name="unisono-output", daemon=True).start()

    def finish(self) -> None:
        """Copy what the pipes still hold, then call `on_done`; the workers are dead by now."""
        if self._stop_fds is None:
            for stream in self._streams:
                stream.close()
            self.on_done()
        else:
            os.close(self._stop_fds[1])

    def _run(self) -> None:
        assert self._stop_fds is not None
        stop_fd = self._stop_fds[0]
        with selectors.DefaultSelector() as selector:
            selector.register(stop_fd, selectors.EVENT_READ)
            stopping, known, copied, order = False, 0, -math.inf, {stop_fd: -1}
            while not stopping:
                for stream in self._streams[known:]:
                    selector.register(stream.read_fd, selectors.EVENT_READ, stream)
                    order[stream.read_fd] = known
                    known += 1
                ready = [key for key, _ in selector.select()]
                if time.monotonic() > copied + _TOGETHER_S and all(key.fd != stop_fd for key in ready):
                    time.sleep(_TOGETHER_S)
                    ready = [key for key, _ in selector.select(0)]
                ready.sort(key=lambda key: order[key.fd])
                copied = time.monotonic()
                stopping = any(key.fd == stop_fd for key in ready) and not os.read(stop_fd, 1)
                for key in ready:
                    if key.fd != stop_fd and not self._copy(key.data):
                        selector.unregister(key.fd)
                        self._close(key.data)
            self._drain([key.data for key in selector.get_map().values() if key.fd != stop_fd])
        for stream in self._streams:
            stream.close()
        os.close(stop_fd)
        self.on_done()

    def _close(self, stream: _Stream) -> None:
        """Close one that has ended, since others may come for as long as the launch lasts."""
        stream.close()
        if stream.file_fd is not None:
            self._dead_targets.discard(stream.file_fd)  # another file may get the number

    def _drain(self, streams: list[_Stream]) -> None:
        for stream in streams:
            reads = 0
            with contextlib.suppress(BlockingIOError):
                while reads < _DRAIN_READS and self._copy(stream):
                    reads += 1
            self._write(stream.target_fd, stream.cleaner.flush())

    def _copy(self, stream: _Stream) -> bool:
        data = os.read(stream.read_fd, _READ_BYTES)
        self._write(stream.file_fd, data)
        self._write(stream.target_fd, stream.cleaner.feed(data) if data else stream.cleaner.flush())
        return bool(data)

    def _write(self, fd: int | None, data: bytes) -> None:
        view = memoryview(data)
        while view and fd is not None and fd not in self._dead_targets:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                select.select([], [fd], [])
            except OSError as error:
                # A full disk or a lost terminal must not end a training; a pipe without reader is a request
                # to stop.
                self._dead_targets.add(fd)
                if error.errno == errno.EPIPE:
                    self.on_broken()
