"""``metrics.jsonl``: what a program has recorded, as one line for each step after which it has recorded something.

In: values by name, and the step that they belong to. Out: lines of JSON in the order of the steps. What is recorded
after a step waits until the next one is done, so that its line is written whole, and once; on resume the lines after
the checkpoint's step are cut off and written anew.
"""

import threading
from collections.abc import Mapping
from typing import final

from unisono.observe.ledger import Ledger, Logged, read_lines
from unisono.system.directory import Directory

NAME = "metrics.jsonl"


@final
class MetricLines:
    """One run's file, which is made with its first line; nothing before it is opened.

    Attributes:
        damage: What was wrong with the file when it was opened, in words; empty: nothing.
        waits: Whether more may come for the same step: inside of a loop over steps. Else lines are written at once.
    """

    def __init__(self) -> None:
        self.damage, self.waits = "", False
        self._home: Directory | None = None
        self._writes = False
        self._file: Ledger | None = None
        self._last: Logged | None = None  # the line that was written last, by this rank or by the one that writes
        self._next: Logged | None = None
        self._lock = threading.Lock()  # while the file is replaced, another thread must not put it on the disk

    def open(self, home: Directory, step: int, *, writes: bool = True) -> None:
        """Begin after `step`, with later lines cut off; a rank that does not write only keeps the last one."""
        self._home, self._writes = home, writes
        if writes and home.status(NAME) is not None:
            self._begin(step)
            if self._file is not None and (line := self._file.damaged_line) is not None:
                what = "broke off within" if self._file.is_cut_off else "was damaged in"
                self.damage = f"{NAME} that {what} line {line}; it is left out, the others up to step {step} stay"

    def _begin(self, step: int | None) -> None:
        """Open the file, with its lines up to `step`; None: with all of them."""
        assert self._home is not None
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = Ledger(self._home.path / NAME, step, has_gaps=True, home=self._home)
        lines = read_lines(self._home.path / NAME)
        self._last = Logged(**lines[-1]) if lines else None

    def take_over(self) -> None:
        """Write from now on, and first what the rank that has died had not written."""
        if self._home is None or self._writes:
            return
        unwritten, self._writes = self._last, True
        self._begin(None)
        if unwritten is not None and unwritten.step > (-1 if self._last is None else self._last.step):
            self._write(unwritten)

    def add(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Record values after a step (0: before the first one); a later value of the same step and name counts."""
        if self._home is None or not values:
            return
        if self._next is not None and self._next.step != step:
            self.flush()
        before = {} if self._next is None else self._next.values
        self._next = Logged(step=step, epoch=epoch, values={**before, **values})
        if not self.waits:
            self.flush()

    def flush(self) -> None:
        """Write the line that waits; where the step has one already, both as one."""
        line, self._next = self._next, None
        if line is None:
            return
        if self._last is not None and self._last.step == line.step:
            line = line._replace(values={**self._last.values, **line.values})
            if line.values == self._last.values:
                return
            if self._writes:
                self._begin(line.step - 1)
        self._write(line)

    def _write(self, line: Logged) -> None:
        if self._writes and self._file is None:
            self._begin(line.step - 1)
        if self._file is not None:
            self._file.append_now(line)
        self._last = line

    def sync(self) -> None:
        """Put what has been written on the disk, from any thread."""
        with self._lock:
            if self._file is not None:
                self._file.sync()

    def close(self) -> None:
        """Write the line that waits and close the file; safe to call twice."""
        self.flush()
        if self._file is not None:
            self._file.close()
        self._home = None
