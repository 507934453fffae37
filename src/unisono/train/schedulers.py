"""Learning-rate schedules that count optimizer steps, and the one that waits for a score.

They are torch's own schedulers, made with a few words; give them to the trainer (or `Run.prepare`), which steps them
after every optimizer step, whatever the number of ranks.
"""

import math
from collections.abc import Callable
from typing import Any, final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from unisono.errors import ConfigError
from unisono.options.directions import mode_of
from unisono.train.callbacks.base import Callback, Loop
from unisono.train.callbacks.stopping import score_of


def warmup_cosine(
    optimizer: Optimizer, *, total_steps: int, warmup_steps: int = 0, final_factor: float = 0.0
) -> LambdaLR:
    """Return a schedule: linearly up from 0 over `warmup_steps`, then half a cosine down to the last step.

    Step 1 uses ``1 / warmup_steps`` of the learning rate, step `warmup_steps` all of it, step `total_steps` and those
    after it `final_factor` of it.

    Args:
        optimizer: Of the model's parameters.
        total_steps: Optimizer steps of the whole run.
        warmup_steps: Below `total_steps`.
        final_factor: In [0, 1].

    Raises:
        ConfigError: A number is out of range.

    Source: Loshchilov and Hutter, SGDR, arXiv 1608.03983; warm-up: Goyal et al., arXiv 1706.02677.
    """
    return _warmed(
        optimizer, total_steps, warmup_steps, final_factor,
        lambda share: final_factor + (1 - final_factor) * (1 + math.cos(math.pi * share)) / 2,
    )  # fmt: skip


def warmup_linear(
    optimizer: Optimizer, *, total_steps: int, warmup_steps: int = 0, final_factor: float = 0.0
) -> LambdaLR:
    """Return a schedule like `warmup_cosine` that goes down in a straight line.

    Raises:
        ConfigError: A number is out of range.
    """
    return _warmed(
        optimizer, total_steps, warmup_steps, final_factor, lambda share: 1 - (1 - final_factor) * share
    )  # fmt: skip


def _warmed(
    optimizer: Optimizer, total_steps: int, warmup_steps: int, final_factor: float, way_down: Callable[[float], float]
) -> LambdaLR:
    """Return a schedule up in a line, then down as `way_down` says from the share of the way."""
    if not 0 <= warmup_steps < total_steps or not 0 <= final_factor <= 1:
        raise ConfigError(
            f"expected 0 <= warmup_steps < total_steps and 0 <= final_factor <= 1, "
            f"got {warmup_steps}, {total_steps} and {final_factor}."
        )

    def factor(done: int) -> float:
        step = done + 1
        if step <= warmup_steps:
            return step / warmup_steps
        if step >= total_steps:
            return final_factor
        return way_down((step - max(warmup_steps, 1)) / (total_steps - max(warmup_steps, 1)))

    return LambdaLR(optimizer, factor)


@final
class Plateau(Callback):
    """Lower the learning rate when a score stops improving: torch's ``ReduceLROnPlateau``, stepped after evaluations.

    Args:
        monitor: A score, as ``test_loss``.
        mode: Whether ``min`` or ``max`` is better. None: as its name says (``test_accuracy``: max), else ``min``.
        settings: More of ``ReduceLROnPlateau``: factor, patience, threshold, cooldown, min_lr.
    """

    def __init__(self, monitor: str, *, mode: str | None = None, **settings: Any) -> None:
        self._monitor, self._mode, self._settings = monitor, mode_of(monitor, mode, default="min"), settings
        self.needs_scores = (monitor,)
        self._scheduler: ReduceLROnPlateau

    def setup(self, loop: Loop) -> None:
        mode: Any = self._mode
        self._scheduler = ReduceLROnPlateau(loop.optimizer, mode=mode, **self._settings)

    def on_evaluation_end(self, loop: Loop) -> None:
        if (score := score_of(loop, self._monitor)) is not None:
            self._scheduler.step(score)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._scheduler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(state)
