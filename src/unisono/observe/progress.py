"""Progress for people: a bar on a terminal, a plain line now and then when piped. Leader only, to standard error."""

import functools
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, final

from unisono.observe.speed import Speed
from unisono.system.words import spell_seconds, wrapped

if TYPE_CHECKING:  # rich is loaded by the process that shows something, when it does
    from rich.console import Console
    from rich.progress import Progress, TaskID

PLAIN_EVERY_S = 5.0
"""Between two lines."""
_DRAWN_EVERY_S = 0.1
_SHORT_S = 0.5  # work that is done sooner is not worth a bar
_WORTH_TELLING = 0.05  # a share of time that waits for data
WIDEST, WIDE, _MIDDLE = 140, 100, 60
"""Columns with room for the whole line; for one speed, and one reason why it is low; for one speed."""


@final
class ProgressLine:
    """Shows steps, loss and speed.

    Args:
        total_steps: Steps of the whole run.
        words: Says where a step is, as ``epoch 1/3``.
        first_step: Steps done before (resume).
        is_shown: False on all ranks but the leader, and in silence.
        speed: Returns the speed of the last steps, None before the first one.
        data_share: Says which share of the time, 0 to 1, was spent waiting for data; asked only when it is shown.

    Attributes:
        work: For what is done between steps and takes time: evaluations.
    """

    def __init__(
        self,
        total_steps: int,
        words: Callable[[int], str],
        *,
        first_step: int = 0,
        is_shown: bool = True,
        speed: Callable[[], Speed | None] = lambda: None,
        data_share: Callable[[], float] | None = None,
    ) -> None:
        self._speed, self._data_share, self._first = speed, data_share, first_step
        self._is_shown = is_shown
        self._total, self._words = total_steps, words
        self._start = time.monotonic()
        self._asked, self._share = -1.0, 0.0
        self._done = first_step, 0.0  # the last step that is done, and its loss
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if is_shown and can_draw(console := _console()):
            self._bar = _bar(console)
            self._bar.start()
            epoch = self._words(min(first_step + 1, total_steps))
            self._task = self._bar.add_task(epoch, total=total_steps, completed=first_step, told="starting")
        self._every_s = PLAIN_EVERY_S if self._bar is None else _DRAWN_EVERY_S
        self._next = self._start + self._every_s
        #: For what is done between steps and takes time: evaluations.
        self.work = WorkLine(is_shown=is_shown, beside=self._bar)

    def step(self, step: int, loss: float) -> None:
        """Show that `step` is done, if it is time to."""
        if not self._is_shown:
            return
        now, self._done = time.monotonic(), (step, loss)
        if now >= self._next or step == self._total:
            self._next = now + self._every_s
            self._show(step, loss, now)

    def _show(self, step: int, loss: float, now: float) -> None:
        epoch = self._words(step)
        if self._bar is not None and self._task is not None:
            width = self._bar.console.width
            how_fast = pace(self._speed(), self._data(now), width) if width >= _MIDDLE else ""
            self._bar.update(self._task, completed=step, description=epoch, told=f"loss {loss:.4f}{how_fast}")
            return
        left = eta(now - self._start, step - self._first, self._total - step)
        told = f"loss {loss:.4f}{pace(self._speed(), self._data(now))}{left}"
        self.note(f"{epoch}  step {step}/{self._total}  {told}")

    def _data(self, now: float) -> float:
        """Return the share of time that waits for data, asked anew once a second."""
        if self._data_share is not None and now - self._asked >= 1:
            self._asked, self._share = now, self._data_share()
        return self._share

    def note(self, text: str) -> None:
        """Print one line above the bar."""
        if self._is_shown:
            _print(self._bar.console if self._bar else _console(), text)

    def close(self) -> None:
        """Stop drawing, at the last step that is done, and give the terminal back; safe to call twice."""
        self.work.close()
        if self._bar is not None and self._task is not None:
            self._bar.columns = self._bar.columns[:-1]  # no time is left
            step, loss = self._done
            if step < self._total:
                told = f"stopped, loss {loss:.4f}" if step > self._first else "stopped"
                self._bar.update(self._task, completed=step, description=self._words(max(1, step)), told=told)
            self._bar.stop()
            self._bar = None
        self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


@final
class WorkLine:
    """Shows how far one piece of work after the other is: evaluations, the building of a cache, a download.

    On a terminal a bar, which goes when the piece is done; in a pipe a line every few seconds. Short work is not shown.
    """

    def __init__(self, *, is_shown: bool = True, beside: "Progress | None" = None) -> None:
        self._is_shown = is_shown
        self._beside, self._bar = beside, beside
        self._task: TaskID | None = None
        self._what = ""
        self._began = self._next = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Tell how far a piece of work is; another name begins another piece, a total of 0 is one that nobody knows."""
        if not self._is_shown:
            return
        now = time.monotonic()
        if what != self._what:
            self._end()
            self._what, self._began = what, now
            self._next = now + (_SHORT_S if can_draw(self._console) else PLAIN_EVERY_S)
        if 0 < total <= done:
            self._end()
        elif now >= self._next:
            self._show(done, total, now)

    def _show(self, done: int, total: int, now: float) -> None:
        if not can_draw(self._console):
            self._next = now + PLAIN_EVERY_S
            of = f"/{total:,}{eta(now - self._began, done, total - done)}" if total else ""
            _print(self._console, f"{self._what}  {done:,}{of}")
            return
        self._next = now + _DRAWN_EVERY_S
        if self._bar is None:
            self._bar = _bar(self._console, goes=True)
            self._bar.start()
        if self._task is None:
            self._task = self._bar.add_task(self._what, total=total or None, told="")
        self._bar.update(self._task, completed=done)

    @functools.cached_property
    def _console(self) -> "Console":
        return _console() if self._beside is None else self._beside.console

    def _end(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.remove_task(self._task)
        if self._bar is not None and self._beside is None:
            self._bar.stop()
            self._bar = None
        self._task, self._what = None, ""

    def close(self) -> None:
        """Stop drawing and give the terminal back; safe to call twice."""
        self._end()
        self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def pace(speed: Speed | None, waiting: float, columns: int = WIDEST) -> str:
    """Return how fast the last steps were and what held them up, as a line of progress goes on.

    Args:
        speed: Of the last steps.
        waiting: Which share of the time, 0 to 1, waits for data.
        columns: Of the terminal. With 140 there is room for both speeds and all reasons, with 100 for one reason.
    """
    told = f"data wait {waiting:.0%}" if waiting >= _WORTH_TELLING else ""
    whys = [speed.spell_outside() if speed else "", told]
    whys = [why for why in whys if why][: 2 if columns >= WIDEST else 1 if columns >= WIDE else 0]
    fast = [] if speed is None else [speed.spell() if columns >= WIDEST else f"{speed.by_clock:,.0f} samples/s"]
    return "".join(f"  {part}" for part in [*(f"now {each}" for each in fast), *whys])


def eta(seconds: float, done: int, left: int) -> str:
    """Return when as much as is left will be done, as a line of progress ends; nothing where nothing is left."""
    return f"  {spell_left(seconds / max(1, done) * left)}" if left else ""


def spell_left(seconds: float) -> str:
    """Return in words how much time is left, in whole seconds."""
    return f"{spell_seconds(float(round(seconds)))} left"


def _console() -> "Console":
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False)


def can_draw(console: "Console") -> bool:
    """Whether lines can be drawn again in place."""
    return console.is_terminal and not console.is_dumb_terminal


def _bar(console: "Console", *, goes: bool = False) -> "Progress":
    """Return a bar; one that `goes` leaves no line behind. On a narrow terminal the numbers stand without it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Left(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            told = [f"{spell_seconds(float(round(task.elapsed or 0)))} done"] if console.width >= WIDE else []
            told += [] if task.time_remaining is None else [spell_left(task.time_remaining)]
            return Text(", ".join(told), style="cyan")

    # of the eight colours that every terminal has: finer ones become each other's on some
    drawn = BarColumn(None, style="bright_black", complete_style="cyan", finished_style="green", pulse_style="cyan")
    return Progress(
        TextColumn("{task.description}"), *([drawn] if console.width >= _MIDDLE else []), MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"), Left(), console=console, transient=goes,
    )  # fmt: skip


def _print(console: "Console", text: str) -> None:
    told = wrapped(text, console.width) if can_draw(console) else text
    console.print(told, soft_wrap=True, markup=False, emoji=False)
