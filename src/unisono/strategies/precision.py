"""Mixed precision: the program's functions under autocast, weights, gradients and sums in float32.

Small gradients vanish in float16, so losses are scaled there, as torch's ``GradScaler`` scales them: by a power of two,
which costs no bit, doubled after 2000 good steps, halved by a step whose gradients overflow. Such a step changes
nothing. All ranks know it by what they tell each other of a step anyway: the scale does not depend on their number.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, final

import torch
from torch import Tensor

from unisono.data.batches import change_tensors
from unisono.strategies.objective import LossFunction, Objective

P = ParamSpec("P")
T = TypeVar("T")

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FIRST, _LEAST, _LARGEST = 2.0**16, 1.0, 2.0**64
_PATIENCE = 2000  # good steps until the scale is doubled


@final
class MixedPrecision:
    """The precision of a run.

    Attributes:
        name: As given.
        scale: By which losses are multiplied now; a power of two.
        num_skipped: Steps left out since the run's start because of it.
    """

    def __init__(self, name: str = "fp32", kind: str = "cpu") -> None:
        self.name = name
        self._dtype, self._kind = _DTYPES.get(name), kind
        self.scale = _FIRST if name == "fp16" else _LEAST
        self._good_steps = self.num_skipped = 0

    @property
    def computes(self) -> tuple[torch.dtype, ...]:
        """The dtype of 16 bits that it computes in, if there is one."""
        return () if self._dtype is None else (self._dtype,)

    @property
    def score(self) -> dict[str, str]:
        """What belongs to the run's score."""
        return {} if self._dtype is None else {"precision": self.name}

    def applied(self, objective: Objective) -> Objective:
        """Return what is minimised as it is computed: under autocast, and with a gradient that is scaled."""
        if self._dtype is None:
            return objective
        precise = objective.wrapped(self.around)
        return replace(precise, loss=self._scaled(precise.loss)) if self.scale != 1 else precise

    def around(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return a function of the program under autocast; what it returns in 16 bits is returned in float32."""
        if self._dtype is None:
            return function

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with torch.autocast(self._kind, dtype=self._dtype):
                return self.widened(function(*args, **kwargs))

        return call

    def widened(self, output: T) -> T:
        """Return an output whose tensors of 16 bits are float32, where this runs under autocast."""
        found: T = output if self._dtype is None else change_tensors(output, _wide)
        return found

    def _scaled(self, loss_function: LossFunction) -> LossFunction:
        scale = self.scale

        def call(data: Any) -> Tensor:
            loss = loss_function(data)
            if isinstance(loss, Tensor) and loss.requires_grad:
                loss.register_hook(lambda gradient: gradient * scale)  # the loss itself stays what it is
            return loss

        return call

    def overflows(self, bad_replicas: Sequence[int], loss: float) -> bool:
        """Whether a step is left out because its scaled gradients are too large; if so, the scale is halved.

        Args:
            bad_replicas: Whose loss or gradient is NaN or infinite; the same on all ranks.
            loss: Mean over the whole batch. One that is not finite is no matter of scale.
        """
        if not bad_replicas or self.scale == _LEAST or not math.isfinite(loss):
            return False
        self.scale, self._good_steps = self.scale / 2, 0
        self.num_skipped += 1
        return True

    def unscale(self, gradients: Sequence[Tensor]) -> None:
        """Divide gradients by the scale, in place."""
        if gradients:
            torch._foreach_mul_(list(gradients), 1 / self.scale)

    def updated(self) -> None:
        """Count a step whose gradients have been applied."""
        if self.name == "fp16":
            self._good_steps += 1
            if self._good_steps >= _PATIENCE:
                self.scale, self._good_steps = min(2 * self.scale, _LARGEST), 0

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        told = {"scale": self.scale, "good_steps": self._good_steps, "skipped": self.num_skipped}
        return {"scaler": told} if self.name == "fp16" else {}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state` has returned, or torch's ``GradScaler`` in runs of version 0.2."""
        if "scaler" in state and self.name == "fp16":
            told = state["scaler"]
            self.scale, self.num_skipped = float(told["scale"]), told.get("skipped", 0)
            self._good_steps = told.get("good_steps", told.get("_growth_tracker", 0))

    def report(self) -> dict[str, Any]:
        """Return what ``result.json`` says of it."""
        return {"skipped_steps": self.num_skipped} if self.name == "fp16" else {}


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
