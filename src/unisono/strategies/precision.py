"""Mixed precision for replicated strategies: forward in bfloat16 or float16, weights and sums in float32.

Parameters, gradients and their reduction stay float32 (apex's ``allreduce_always_fp32``); float16 losses are scaled
by torch's own scaler, and a step whose gradients overflow is left out on all ranks alike.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.strategies.base import LossFunction, StrategyContext
from unisono.strategies.options import PreciseOptions
from unisono.strategies.replicated import Replicated

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precise(Replicated):
    """A replicated strategy with the options of `PreciseOptions`."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: PreciseOptions
    ) -> None:
        super().__init__(model, optimizer, context, options)
        self._dtype = DTYPES.get(options.amp)
        self._scaler = torch.amp.GradScaler(context.device.type, enabled=options.amp == "fp16")
        self._scaler.scale(torch.zeros(1, device=context.device))  # it makes its own scale with the first tensor
        self._num_skipped = 0

    def wrapped(self, loss_function: LossFunction) -> LossFunction:
        if self._dtype is None:
            return loss_function

        def call(data: Any) -> Tensor:
            with torch.autocast(self.context.device.type, dtype=self._dtype):
                return loss_function(data).float()

        return call

    def loss_scale(self) -> float:
        """Return the factor that keeps float16 gradients away from zero; 1 without float16."""
        return self._scaler.get_scale()

    def refuses_non_finite(self) -> bool:
        """See `Replicated.refuses_non_finite`; the scaler leaves out steps that overflow."""
        return not self._scaler.is_enabled()

    def apply(self) -> bool:
        """See `Strategy.apply`; where float16 gradients overflow, the optimizer does not step."""
        if not self._scaler.is_enabled():
            return super().apply()
        self._scaler.unscale_(self.optimizer)
        self.clip_gradients()
        before = self._scaler.get_scale()
        self._scaler.step(self.optimizer)
        self._scaler.update()
        is_skipped = self._scaler.get_scale() < before
        self._num_skipped += is_skipped
        return not is_skipped

    def extra_state(self) -> dict[str, Any]:
        return {"scaler": self._scaler.state_dict()} if self._scaler.is_enabled() else {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        if "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])

    def report(self) -> dict[str, Any]:
        return {"skipped_steps": self._num_skipped} if self._scaler.is_enabled() else {}
