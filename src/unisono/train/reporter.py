"""What the leader of a trainer shows, progress on standard error, and what is written: ``metrics.jsonl``."""

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Self, final

from unisono.collectives.placement import cut
from unisono.observe.phases import DATA
from unisono.observe.progress import ProgressLine
from unisono.system.words import spell_seconds
from unisono.train.callbacks.base import Loop
from unisono.train.evaluate import BATCH_SIZE
from unisono.train.run import Run


@final
class Reporter:
    """What the leader shows while a trainer fits; what is logged goes to the run."""

    def __init__(self, run: Run, loop: Loop, *, is_shown: bool) -> None:
        self._run, self._loop = run, loop
        self._is_shown, self._leads = is_shown, run.world.is_leader
        self._losses, self._steps, self._since = 0.0, 0, time.monotonic()  # since the last line of metrics
        self._progress: ProgressLine | None = None

    def begin(self) -> None:
        """Start to show."""
        self._show()
        self.note(self._run._describe_start())

    def _show(self) -> None:
        loop = self._loop
        self._progress = ProgressLine(
            loop.total_steps, self._words, first_step=loop.step, is_shown=self._is_shown and self._leads,
            speed=self._run._progress.usage.now, data_share=partial(self._run.phases.share, DATA),
        )  # fmt: skip

    def _words(self, step: int) -> str:
        """Return where a step is; of a stream it is known only for that which is done."""
        loop = self._loop
        if loop.cuts is None:
            return self._epoch(loop.epoch, None)
        return self._epoch(loop.cuts.epoch_of(step), loop.cuts.epoch_of(loop.total_steps) + 1)

    @staticmethod
    def _epoch(number: int, epochs: int | None) -> str:
        return f"pass {number + 1}" if epochs is None else f"epoch {number + 1}/{epochs}"

    def _follow(self) -> None:
        """Go on for the leader where it has died and this rank is the new one."""
        if self._leads or not self._run.world.is_leader:
            return
        self._leads = True
        self._show()

    def step(self) -> None:
        """Show a step."""
        self._follow()
        self._losses += self._loop.loss
        self._steps += 1
        if self._progress is not None:
            self._progress.step(self._loop.step, self._loop.loss)

    def evaluating(self, num_samples: int) -> Callable[[], None]:
        """Return what is to be called after every batch of an evaluation, to show how far it is."""
        progress = self._progress
        if progress is None:  # nothing is left to train
            return lambda: None
        mine = len(cut(-(-num_samples // BATCH_SIZE), self._run.world.world_size)[self._run.world.rank])
        done = itertools.count(1)
        progress.work("evaluation", 0, mine)
        return lambda: progress.work("evaluation", next(done), mine)

    def note(self, text: str) -> None:
        """Print one line."""
        if self._progress is not None:
            self._progress.note(text)

    def tell_metrics(self) -> None:
        """Print the metrics of an evaluation, after the mean loss and the time of the steps since the last one."""
        self._follow()
        loop, now = self._loop, time.monotonic()
        scores = ({"train_loss": self._losses / self._steps} if self._steps else {}) | loop.scores
        listed = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        self.note(f"{self._epoch(loop.epoch, loop.epochs)}  {listed}  {spell_seconds(now - self._since)}")
        self._losses, self._steps, self._since = 0.0, 0, now

    def write(self, values: dict[str, float]) -> None:
        """Write a line of ``metrics.jsonl``."""
        self._follow()
        self._run._record.ledgers.metrics.add(self._loop.step, self._loop.epoch, values)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.close()
