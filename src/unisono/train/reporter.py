"""What the leader of a training shows and writes: progress on standard error, and ``metrics.jsonl``."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Self, final

from unisono.collectives.placement import cut
from unisono.observe.ledger import Ledger, Logged
from unisono.observe.phases import DATA
from unisono.observe.progress import ProgressLine
from unisono.train.callbacks.base import Loop
from unisono.train.evaluate import BATCH_SIZE
from unisono.train.run import Run


@final
class Reporter:
    """What the leader shows and writes while a trainer fits; nothing on the other ranks.

    Args:
        run: Its directory gets ``metrics.jsonl``.
        loop: Where the training stands.
        is_shown: Whether there is progress.
    """

    def __init__(self, run: Run, loop: Loop, *, is_shown: bool) -> None:
        self._run, self._loop = run, loop
        self._is_shown = is_shown and run.world.is_leader
        self._progress: ProgressLine | None = None
        self._logged: Ledger | None = None

    def begin(self) -> None:
        """Start to show; the file is cut where the run goes on."""
        loop = self._loop
        self._progress = ProgressLine(
            loop.total_steps, loop.steps_per_epoch, first_step=loop.step, is_shown=self._is_shown,
            data_share=partial(self._run.phases.share, DATA),
        )  # fmt: skip
        if loop.step:
            self._progress.note(f"resumed after step {loop.step}")
        if self._run.directory is not None and self._run.world.is_leader:
            self._logged = Ledger(self._run.directory / "metrics.jsonl", loop.step, has_gaps=True)

    def step(self) -> None:
        """Show a step."""
        if self._progress is not None:
            self._progress.step(self._loop.step, self._loop.loss, len(self._loop.indices))

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
        """Print the metrics of an evaluation."""
        loop = self._loop
        listed = "  ".join(f"{name} {value:.4f}" for name, value in loop.scores.items())
        self.note(f"epoch {loop.epoch + 1}/{loop.epochs}  {listed}")

    def write(self, values: dict[str, float]) -> None:
        """Write a line of ``metrics.jsonl``."""
        if values and self._logged is not None:
            self._logged.append_now(Logged(step=self._loop.step, epoch=self._loop.epoch, values=values))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._progress, self._logged):
            if each is not None:
                each.close()
