"""Progress for people: a bar on a terminal, a plain line now and then when piped. Leader only, to standard error."""

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_PLAIN_EVERY_S = 5.0


@final
class ProgressLine:
    """Shows steps, loss and speed.

    Args:
        total_steps: Steps of the whole run.
        steps_per_epoch: Steps of one epoch.
        first_step: Steps done before (resume).
        is_shown: False on all ranks but the leader, and in silence.
        data_share: Says which share of the time, 0 to 1, was spent waiting for data; asked only when it is shown.
    """

    def __init__(
        self,
        total_steps: int,
        steps_per_epoch: int,
        *,
        first_step: int = 0,
        is_shown: bool = True,
        data_share: Callable[[], float] | None = None,
    ) -> None:
        self._data_share, self._first = data_share, first_step
        self._is_shown = is_shown
        self._total = total_steps
        self._per_epoch = steps_per_epoch
        self._console = Console(file=sys.stderr, highlight=False)
        self._start, self._last_print, self._samples = time.monotonic(), time.monotonic(), 0
        self._asked, self._shown_share = -1.0, ""
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if is_shown and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]} {task.fields[speed]:>7} samples/s{task.fields[data]}"),
                TimeRemainingColumn(compact=True),
                console=self._console,
            )
            self._bar.start()
            self._task = self._bar.add_task(
                "epoch 1", total=total_steps, completed=first_step, loss="-", speed="-", data=""
            )

    def step(self, step: int, loss: float, num_samples: int) -> None:
        """Show that `step` is done."""
        self._samples += num_samples
        if not self._is_shown:
            return
        now = time.monotonic()
        epoch = (step - 1) // self._per_epoch + 1
        epochs = -(-self._total // self._per_epoch)
        speed = self._samples / max(now - self._start, 1e-9)
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task,
                completed=step,
                description=f"epoch {epoch}/{epochs}",
                loss=f"{loss:.4f}",
                speed=f"{speed:,.0f}",
                data=self._data(now),
            )
        elif now - self._last_print >= _PLAIN_EVERY_S or step == self._total:
            self._last_print = now
            left = round((now - self._start) / max(1, step - self._first) * (self._total - step))
            eta = f"  eta {timedelta(seconds=left)}" if step < self._total else ""
            self.note(
                f"epoch {epoch}/{epochs}  step {step}/{self._total}  loss {loss:.4f}  {speed:,.0f} samples/s"
                f"{self._data(now)}{eta}"
            )

    def _data(self, now: float) -> str:
        """Return the share of time that waits for data, asked anew once a second."""
        if self._data_share is not None and now - self._asked >= 1:
            self._asked, self._shown_share = now, f" data {self._data_share():.0%}"
        return self._shown_share

    def note(self, text: str) -> None:
        """Print one line above the bar."""
        if self._is_shown:
            (self._bar.console if self._bar else self._console).print(text, soft_wrap=True, markup=False, emoji=False)

    def close(self) -> None:
        """Stop drawing and give the terminal back; safe to call twice."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._is_shown = False

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
