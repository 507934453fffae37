"""What a ledger's writer may not have written yet, kept by those who would go on for it."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import final

from unisono.observe import chain
from unisono.observe.ledger import Entry, Ledger
from unisono.system.directory import Directory

_LOOK_S = 1.0
_TAIL_BYTES = 4096  # longer than two lines of steps


@final
class Unwritten:
    """Entries of a ledger that another process writes, kept until its file shows them: where it dies, this one goes on.

    Args:
        path: Of the ledger.
        last_step: The step before the first entry to come; from there on each step has one.
        home: The directory of the file, held open.
    """

    def __init__(self, path: Path, last_step: int, home: Directory) -> None:
        self._path, self._home = path, home
        self._first = last_step + 1
        self._kept: list[Callable[[], Entry]] = []
        self._looked = time.monotonic()

    def append(self, entry: Callable[[], Entry]) -> None:
        """Keep the next step's entry."""
        self._kept.append(entry)
        if time.monotonic() - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            written = max(0, _last_written(self._home, self._path.name) + 1 - self._first)
            del self._kept[:written]
            self._first += written

    def take_over(self) -> Ledger:
        """Return the ledger, now that the other process has died; what it had not written is written first."""
        ledger = Ledger(self._path, None, home=self._home)
        for entry in self._kept[max(0, ledger.last_step + 1 - self._first) :]:
            ledger.append(entry)
        ledger.flush()
        return ledger


def _last_written(home: Directory, name: str) -> int:
    """Return the step of a file's last whole line, 0 where there is none."""
    with home.reading(name) as (descriptor, size):
        tail = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    entries = [entry for _, entry in chain.parse_all(tail[: tail.rfind(b"\n") + 1]) if entry is not None]
    return entries[-1]["step"] if entries else 0
