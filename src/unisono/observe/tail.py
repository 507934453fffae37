"""Reading a file of lines while another process writes it: each whole line once."""

import os
from pathlib import Path
from typing import final

_MOST_BYTES = 64 << 20
"""Read at a time."""


@final
class Tail:
    """The lines of a file that grows, or is cut and written on, or replaced; it need not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._place, self._last = 0, 0, b""

    def poll(self) -> tuple[bool, list[bytes]]:
        """Return whether all lines begin again, and the whole lines since the last call.

        A file that no longer holds what was read last, where it was read, is read from its beginning.
        """
        try:
            with self._path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                file.seek(self._place - len(self._last))
                again = inode != self._inode or file.read(len(self._last)) != self._last
                if again:
                    self._inode, self._place, self._last = inode, 0, b""
                    file.seek(0)
                content = file.read(_MOST_BYTES)
        except FileNotFoundError:
            again = self._inode != 0
            self._inode, self._place, self._last = 0, 0, b""
            return again, []
        whole, end, _ = content.rpartition(b"\n")
        if not end:
            return again, []
        lines = whole.split(b"\n")
        self._place += len(whole) + 1
        self._last = lines[-1] + b"\n"
        return again, lines
