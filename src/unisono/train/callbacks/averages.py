"""Averages of weights: exponential (EMA) and of epochs (SWA). Evaluations can use them; the training does not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn

from unisono.errors import ConfigError
from unisono.options.quantities import DECAY, EPOCHS
from unisono.train.callbacks.base import Callback, Loop


class WeightAverage(Callback):
    """Base of averages: keeps one value per parameter and floating-point buffer, and lends them to evaluations.

    Every rank holds the average and updates it alike, so it is the same bits everywhere.
    """

    draws = False

    def __init__(self, *, evaluate: bool = True) -> None:
        self._evaluates = evaluate
        self._own: list[Tensor] | None = None
        self.average: dict[str, Tensor] = {}  #: By the model's names; empty before the first step.

    def setup(self, loop: Loop) -> None:
        """Begin the average; `ConfigError` where the strategy keeps a part of the weights or buffers on each rank."""
        strategy, name = loop.run.strategy, type(self).__name__
        if strategy.is_sharded:
            raise ConfigError(
                f"{name} averages whole weights on every rank, of which strategy {strategy.name} keeps a part on each. "
                "Hint: leave it out, or take strategy exact, which has the same bits."
            )
        if strategy.name in ("ps", "ps_async") and any(buffer.is_floating_point() for buffer in loop.model.buffers()):
            raise ConfigError(
                f"{name} averages batch statistics too, which strategy {strategy.name} keeps on the workers alone. "
                "Hint: leave it out, or take strategy exact."
            )
        self.average = {name: tensor.clone() for name, tensor in _averaged(loop.model).items()}

    def copy_to(self, model: nn.Module) -> None:
        """Put the average into a model of the same shape, for instance after the run."""
        torch._foreach_copy_(list(_averaged(model).values()), list(self.average.values()))

    def on_evaluation_start(self, loop: Loop) -> None:
        if self._evaluates and self._is_ready():
            self._own = [tensor.clone() for tensor in _averaged(loop.model).values()]
            self.copy_to(loop.model)

    def on_evaluation_end(self, loop: Loop) -> None:
        if self._own is not None:
            torch._foreach_copy_(list(_averaged(loop.model).values()), self._own)
            self._own = None

    def state_dict(self) -> dict[str, Any]:
        return {"average": dict(self.average)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch._foreach_copy_(list(self.average.values()), [state["average"][name] for name in self.average])

    def _is_ready(self) -> bool:
        return True


@final
class EMA(WeightAverage):
    """Exponential moving average: ``average = decay * average + (1 - decay) * weights`` after every step.

    It begins at the initial weights. With `warm_up` the decay of step t is at most (1 + t) / (10 + t), so that the
    first weights are soon forgotten.

    Args:
        decay: In [0, 1).
        warm_up: See above.
        evaluate: Whether evaluations use the average.

    Source: Polyak and Juditsky, SIAM J. Control Optim. 30 (1992); the warm-up is TensorFlow's ``num_updates``.
    """

    def __init__(self, decay: float = 0.999, *, warm_up: bool = False, evaluate: bool = True) -> None:
        super().__init__(evaluate=evaluate)
        self._decay, self._warm_up = DECAY.take("decay", decay), warm_up

    def on_step_end(self, loop: Loop) -> None:
        decay = min(self._decay, (1 + loop.step) / (10 + loop.step)) if self._warm_up else self._decay
        torch._foreach_lerp_(list(self.average.values()), list(_averaged(loop.model).values()), 1 - decay)


@final
class SWA(WeightAverage):
    """Stochastic weight averaging: the plain mean of the weights at the ends of epochs.

    Buffers (batch norm's statistics) are averaged too.

    Args:
        start_epoch: The first epoch (0-based) that counts.
        evaluate: Whether evaluations use the average, once there is one.

    Source: Izmailov et al., UAI 2018, arXiv 1803.05407.
    """

    def __init__(self, start_epoch: int = 0, *, evaluate: bool = True) -> None:
        super().__init__(evaluate=evaluate)
        self._start_epoch = replace(EPOCHS, low=0).take("start_epoch", start_epoch)
        self.num_averaged = 0

    def on_epoch_end(self, loop: Loop) -> None:
        if loop.epoch >= self._start_epoch:
            self.num_averaged += 1
            weights = list(_averaged(loop.model).values())
            torch._foreach_lerp_(list(self.average.values()), weights, 1 / self.num_averaged)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"num_averaged": self.num_averaged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.num_averaged = state["num_averaged"]

    def _is_ready(self) -> bool:
        return self.num_averaged > 0


def _averaged(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and floating-point buffers by name, without their graph."""
    named: Sequence[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named if tensor.is_floating_point()}
