"""A run's ledgers as its ranks see them: the leader writes, the others keep what it may not have written yet."""

import contextlib
from collections.abc import Callable
from typing import final

from unisono.observe.ledger import Detail, Details, Entry, Ledger, Unwritten
from unisono.observe.metric_lines import NAME, MetricLines
from unisono.system.directory import Directory


@final
class Ledgers:
    """``ledger.jsonl``, ``metrics.jsonl`` and, on request, ``detail.jsonl`` of a run directory; none before it is open.

    Attributes:
        metrics: What the program records.
        compares: Whether a step that is computed again must be what it was, and is compared.
    """

    def __init__(self, *, keeps_detail: bool) -> None:
        self.keeps_detail = keeps_detail
        self.metrics, self.compares = MetricLines(), False
        self._ledger: Ledger | None = None
        self._detail: Ledger | None = None
        self._unwritten: Unwritten | None = None
        self._last_detail: Detail | Details | None = None

    @property
    def names(self) -> list[str]:
        """Of the files."""
        return ["ledger.jsonl", NAME, *(["detail.jsonl"] if self.keeps_detail else [])]

    @property
    def found(self) -> dict[str, int]:
        """The last step of the ledger when it was opened, as ``reached``, where this rank has opened one with steps."""
        return {"reached": self._ledger.reached} if self._ledger is not None and self._ledger.reached else {}

    def open(self, home: Directory, step: int, head: str, tell: Callable[[str], None]) -> None:
        """Write from now on; entries after `step` are cut off, `head` is the chain value there; `tell` of damage."""
        self._ledger = Ledger(home.path / "ledger.jsonl", step, head=head, home=home, compares=self.compares)
        if (line := self._ledger.torn_line) is not None:
            tell(f"held a ledger that broke off within line {line}; it is written again from step {step + 1} on")
        self.metrics.open(home, step)
        if self.metrics.damage:
            tell(f"held a {self.metrics.damage}")
        if self.keeps_detail:
            self._detail = Ledger(home.path / "detail.jsonl", step, has_gaps=True, home=home)

    def stand_by(self, home: Directory, step: int) -> None:
        """Keep, from the step after `step` on, what another rank writes, until its files show it."""
        self._unwritten = Unwritten(home.path / "ledger.jsonl", step, home)
        self.metrics.open(home, step, writes=False)

    def take_over(self, home: Directory) -> None:
        """Write from now on, and first what the rank that has died had not written."""
        if self._unwritten is None:
            return
        self._ledger, self._unwritten = self._unwritten.take_over(), None
        self.metrics.take_over()
        if self.keeps_detail:
            self._detail = Ledger(home.path / "detail.jsonl", None, has_gaps=True, home=home)
            if self._last_detail is not None and self._last_detail.step > self._detail.last_step:
                self._detail.append_now(self._last_detail)

    def append(self, entry: Callable[[], Entry]) -> None:
        """Write a step's line, made when it is written."""
        self.metrics.flush()  # of the step before
        if self._ledger is not None:
            self._ledger.append(entry)
        elif self._unwritten is not None:
            self._unwritten.append(entry)

    def append_detail(self, detail: Callable[[], Detail | Details]) -> None:
        """Write what a step is made of, where that is kept."""
        if self._detail is not None:
            self._detail.append_now(detail())
        elif self._unwritten is not None and self.keeps_detail:
            self._last_detail = detail()  # the one before had been written when this step's ranks met

    def flush(self) -> str:
        """Write all lines that wait, and return the ledger's head: the chain value after them; empty where none is."""
        self.metrics.flush()
        if self._ledger is None:
            return ""
        self._ledger.flush()
        return self._ledger.head

    def sync(self) -> None:
        """Put what has been written on the disk, from any thread."""
        assert self._ledger is not None
        self._ledger.sync()
        self.metrics.sync()

    def close(self) -> None:
        """Write what waits and close the files; safe to call twice."""
        with contextlib.ExitStack() as stack:  # each is closed, whatever the other does
            for file in (self._ledger, self._detail, self.metrics):
                if file is not None:
                    stack.callback(file.close)
