"""Open files by their descriptors: written through ``os`` alone, so that a test can record or fail each call."""

import fcntl
import io
import os
from collections.abc import Iterator
from typing import Any, final

_PIECE = 4 << 20  # bytes read at a time


@final
class File(io.RawIOBase):
    """A file that is open for writing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._descriptor

    def writable(self) -> bool:
        """Whether it can be written: always."""
        return True

    def write(self, data: Any) -> int:
        """Write all of `data`, and return how many bytes."""
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            done += os.write(self._descriptor, view[done:])
        return done

    def sync(self) -> None:
        """Put what was written on the disk; a failure is never tried again."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close it; safe to call twice."""
        if not self.closed:
            super().close()
            os.close(self._descriptor)


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock of an open file or directory; whether it was free. It falls with the last descriptor.

    Raises:
        OSError: The file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def pieces(descriptor: int) -> Iterator[bytes]:
    """Yield what a file holds from here on."""
    while piece := os.read(descriptor, _PIECE):
        yield piece
