"""Callbacks that look: the loss, learning rates, gradients and weights, memory, predictions of samples."""

import math
import operator
import resource
import sys
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from unisono.data.batches import move
from unisono.data.loader import Fetcher, Task
from unisono.determinism import devices
from unisono.errors import ConfigError
from unisono.options.quantities import DECAY, STEPS
from unisono.train.callbacks.base import Callback, Loop
from unisono.train.evaluate import evaluation_mode

_LR = operator.itemgetter("lr")


@final
class LearningRateMonitor(Callback):
    """Log the learning rate of every parameter group that the next step will use: ``lr/0``, ``lr/1``, ..."""

    draws = False

    def __init__(self) -> None:
        self._names: list[str] = []

    def on_step_end(self, loop: Loop) -> None:
        groups = loop.optimizer.param_groups
        if len(groups) != len(self._names):
            self._names = [f"lr/{index}" for index in range(len(groups))]
        loop.log(**dict(zip(self._names, map(_LR, groups), strict=True)))


@final
class LossAverage(Callback):
    """Log the exponential moving average of the training loss, free of the bias towards its start: ``train/loss_ema``.

    It averages numbers, so it holds no graph. A step whose loss is not finite is left out. The state travels with the
    checkpoint, so a resumed run logs what an uninterrupted one would.

    Args:
        decay: In [0, 1).

    Source: the bias correction of Kingma and Ba, ICLR 2015, arXiv 1412.6980, section 3.
    """

    draws = False

    def __init__(self, decay: float = 0.98) -> None:
        self._decay = DECAY.take("decay", decay)
        self._sum, self._weight = 0.0, 0.0

    def on_step_end(self, loop: Loop) -> None:
        if math.isfinite(loop.loss):
            self._sum = self._decay * self._sum + (1 - self._decay) * loop.loss
            self._weight = self._decay * self._weight + (1 - self._decay)
        if self._weight:
            loop.log(**{"train/loss_ema": self._sum / self._weight})

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self._sum, "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sum, self._weight = state["sum"], state["weight"]


@final
class GradientMonitor(Callback):
    """Log norms of gradients and weights, and the ratio of the two: overall, and by parameter if asked.

    Gradients are those of the step's batch over all ranks, after clipping. All ranks hold the same ones.

    Args:
        every: Steps between measurements.
        by_parameter: Also log ``gradient_norm/NAME`` and ``weight_norm/NAME``.
    """

    draws = False

    def __init__(self, every: int = 50, *, by_parameter: bool = False) -> None:
        self._every, self._by_parameter = STEPS.take("every", every), by_parameter

    def setup(self, loop: Loop) -> None:
        """Refuse (`ConfigError`) a strategy that leaves a part of the gradient on each rank."""
        if not loop.run.strategy.shares_gradients:
            raise ConfigError(
                f"GradientMonitor looks at the whole gradient on every rank, which strategy {loop.run.strategy.name} "
                "does not leave there. Hint: leave it out, or try strategy exact, without island_steps."
            )

    def on_step_end(self, loop: Loop) -> None:
        if loop.step % self._every:
            return
        named = [(name, p.detach(), p.grad) for name, p in loop.model.named_parameters() if p.grad is not None]
        norms = {
            "gradient_norm": torch._foreach_norm([gradient for _, _, gradient in named]),
            "weight_norm": torch._foreach_norm([weight for _, weight, _ in named]),
        }
        values = {kind: float(torch.linalg.vector_norm(torch.stack(list(each)))) for kind, each in norms.items()}
        values["gradient_to_weight"] = values["gradient_norm"] / values["weight_norm"] if values["weight_norm"] else 0.0
        if self._by_parameter:
            for kind, each in norms.items():
                values |= {f"{kind}/{name}": float(norm) for (name, _, _), norm in zip(named, each, strict=True)}
        loop.log(**values)


@final
class MemoryMonitor(Callback):
    """Log the leader's peak memory at the end of every epoch: ``memory_peak_mib``, on a GPU ``gpu_memory_peak_mib``."""

    draws = False

    def on_epoch_end(self, loop: Loop) -> None:
        unit = 1 if sys.platform == "darwin" else 1024
        values = {"memory_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20}
        if devices.is_gpu(loop.run.device):
            values["gpu_memory_peak_mib"] = devices.peak_bytes(loop.run.device) / 2**20
        loop.log(**values)


@final
class SamplePredictions(Callback):
    """Show what the model says of a few samples after every evaluation; on the leader only.

    Args:
        dataset: Map-style; samples are pairs (x, y) unless `collate` makes them so.
        indices: Which samples.
        show: Gets the loop, the outputs and the targets.
        collate: As in `Run.loader`.
        predict: From model and inputs to outputs.
    """

    runs_on = "leader"

    def __init__(
        self,
        dataset: Any,
        indices: Sequence[int],
        show: Callable[[Loop, Tensor, Any], None],
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        predict: Callable[[nn.Module, Any], Tensor] = lambda model, x: model(x),
    ) -> None:
        self._fetcher = Fetcher(dataset, 0, collate=collate)
        self._task = Task(-1, np.array(indices, dtype=np.int64))
        self._show, self._predict = show, predict

    def on_evaluation_end(self, loop: Loop) -> None:
        batch = move(self._fetcher[self._task], loop.run.device)
        with evaluation_mode(loop.model), torch.no_grad():
            output = loop.run.precision.around(lambda x: self._predict(loop.model, x))(batch.x)
        self._show(loop, output, batch.y)
