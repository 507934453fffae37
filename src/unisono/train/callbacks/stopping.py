"""Callbacks that end a run: no improvement any more, or no time."""

import math
import time
from typing import Any, final

from unisono.errors import ConfigError
from unisono.options.directions import mode_of
from unisono.options.quantities import COUNT, Amount
from unisono.train.callbacks.base import Callback, Loop


def score_of(loop: Loop, monitor: str) -> float | None:
    """Return one score of the last evaluation; None where that was of the part and this is not, or the other way round.

    Raises:
        ConfigError: Lists the names there are.
    """
    if monitor.startswith("part_") != loop.is_part:
        return None
    if monitor not in loop.scores:
        raise ConfigError(f"expected one of the scores {', '.join(sorted(loop.scores))}, got {monitor!r}.")
    return loop.scores[monitor]


@final
class EarlyStopping(Callback):
    """Stop when a score has not improved for several evaluations.

    Scores are the same bits on all ranks, so all decide alike; the counters travel with the checkpoint, so a resumed
    run decides as an uninterrupted one. A run that has stopped stays stopped.

    Args:
        monitor: A score, as ``test_loss``.
        mode: Whether ``min`` or ``max`` is better. None: as its name says (``test_accuracy``: max), else ``min``.
        patience: Evaluations without improvement before the run ends, at least 1.
        min_delta: What counts as improvement, at least.

    Attributes:
        best: The best score so far; None before the first.
        num_bad: Evaluations since.
    """

    draws = False

    def __init__(self, monitor: str, *, mode: str | None = None, patience: int = 3, min_delta: float = 0.0) -> None:
        self._monitor, self._mode = monitor, mode_of(monitor, mode, default="min")
        self._patience = COUNT.take("patience", patience)
        self._min_delta = Amount(0, 1e30).take("min_delta", min_delta)
        self.needs_scores = (monitor,)
        self.best: float | None = None
        self.num_bad = 0

    def on_run_start(self, loop: Loop) -> None:
        self._judge(loop)

    def on_evaluation_end(self, loop: Loop) -> None:
        if (score := score_of(loop, self._monitor)) is None:
            return
        sign = 1 if self._mode == "max" else -1
        if not math.isnan(score) and (self.best is None or sign * (score - self.best) > self._min_delta):
            self.best, self.num_bad = score, 0
        else:
            self.num_bad += 1
        self._judge(loop)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "num_bad": self.num_bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.num_bad = state["best"], state["num_bad"]

    def _judge(self, loop: Loop) -> None:
        if self.num_bad >= self._patience:
            best = self.best if self.best is None else f"{self.best:.6g}"
            loop.stop(f"{self._monitor} has not improved on {best} for {self.num_bad} evaluations")


@final
class TimeLimit(Callback):
    """Stop when this launch has trained for so long; the same command goes on from there.

    Looked at where the trainer logs; as soon as one rank's time is up, all stop.

    Args:
        seconds: Above 0.
    """

    draws = False

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ConfigError(f"expected seconds > 0, got {seconds}.")
        self._seconds = seconds
        self._began = 0.0

    def on_run_start(self, loop: Loop) -> None:
        self._began = time.monotonic()

    def on_step_end(self, loop: Loop) -> None:
        if time.monotonic() - self._began > self._seconds:
            loop.stop(f"the time limit of {self._seconds:g} s was reached")
