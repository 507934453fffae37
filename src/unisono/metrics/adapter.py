"""Any torchmetrics metric, merged exactly: the same bits for every number of ranks.

torchmetrics adds up float states in whatever order ranks and batches come. Here every batch gets a fresh state; the
states are merged without rounding where they are sums, and in the order of the batches where order matters. Batches do
not depend on the number of ranks, so neither does the result.
"""

import base64
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from unisono.errors import ConfigError
from unisono.metrics.base import ExactSum, Metric, Value
from unisono.system.loading import needing


@final
class TorchMetric(Metric):
    """A torchmetrics metric as a metric of ours. Needs the extra ``torchmetrics``.

    Sums of whole numbers and of floats are exact (NaN where an addend is not finite); extrema too; concatenated
    states, states without a reduction and states with one of their own are kept batch by batch, in order, and grow
    with the data.

    Args:
        metric: Any ``torchmetrics.Metric``; wrappers and compositions too. It belongs to the adapter from now on.

    Raises:
        ConfigError: Not such a metric, or one whose states are averages, which do not merge exactly.

    Example:
        >>> from torchmetrics.classification import MulticlassF1Score  # doctest: +SKIP
        >>> metrics = {"f1": TorchMetric(MulticlassF1Score(num_classes=10))}
    """

    def __init__(self, metric: Any) -> None:
        with needing("torchmetrics"):
            from torchmetrics import Metric as Theirs
            from torchmetrics.utilities import data

        if not isinstance(metric, Theirs):
            raise ConfigError(
                f"expected a torchmetrics.Metric, got {type(metric).__name__}. "
                "Hint: give the members of a MetricCollection one by one, each under its own name."
            )
        self._metric: Any = metric
        kinds = {
            data.dim_zero_sum: "sum", data.dim_zero_max: "max", data.dim_zero_min: "min", data.dim_zero_cat: "cat",
        }  # fmt: skip
        self._merged: dict[str, _Merged] = {}
        for key, owner, name in self._places():
            reduction = owner._reductions[name]
            default = owner._defaults[name]
            if reduction is data.dim_zero_mean:
                raise ConfigError(
                    f"{type(owner).__name__} keeps {name!r} as an average, and averages of averages are not exact. "
                    "Hint: choose a metric that keeps sums and counts."
                )
            kind = "cat" if isinstance(default, list) else kinds.get(reduction, "stack")
            if kind == "sum" and bool((default != 0).any()):
                raise ConfigError(f"{type(owner).__name__} starts the sum {name!r} at {default}, expected 0.")
            self._merged[key] = _Merged(kind)
        if not self._merged:
            raise ConfigError(f"{type(metric).__name__} keeps no states that could be merged.")
        for module in metric.modules():
            if isinstance(module, Theirs):
                module.distributed_available_fn = _never  # merging is ours
        self._num_updates = 0

    @property
    def state(self) -> list[int]:
        """Everything merged so far as one whole number: JSON and safetensors, no pickle."""
        text = json.dumps([self._num_updates, {key: merged.pack() for key, merged in self._merged.items()}])
        return [int.from_bytes(b"\1" + text.encode(), "big")]

    @state.setter
    def state(self, value: list[int]) -> None:
        self.reset()
        self.merge(value)

    def reset(self) -> None:
        self._num_updates = 0
        for merged in self._merged.values():
            merged.clear()

    def merge(self, state: list[int]) -> None:
        (number,) = state
        text = number.to_bytes((number.bit_length() + 7) // 8, "big")[1:]
        num_updates, packed = json.loads(text)
        self._num_updates += num_updates
        for key, merged in self._merged.items():
            merged.unpack(packed[key])

    def update(self, output: Tensor, target: Tensor) -> None:
        self._start(output.device)
        self._metric.update(output, target)
        self._num_updates += 1
        for key, owner, name in self._places():
            current = getattr(owner, name)
            self._merged[key].add(list(current) if isinstance(current, list) else [current])

    def compute(self) -> Value:
        """See `Metric.compute`; several numbers where torchmetrics gives a vector or a dictionary.

        Raises:
            ConfigError: The metric gives something else, for instance a curve.
        """
        self._start(torch.device("cpu"))
        for key, owner, name in self._places():
            merged, default = self._merged[key], owner._defaults[name]
            if isinstance(default, list):
                setattr(owner, name, list(merged.parts))
            elif not merged.is_empty:
                setattr(owner, name, merged.value(owner._reductions[name]))
        for module in self._metric.modules():
            if hasattr(module, "_update_count"):
                module._update_count = self._num_updates
        try:
            return _numbers(self._metric.compute(), type(self._metric).__name__)
        finally:
            self._metric.reset()

    def _start(self, device: torch.device) -> None:
        self._metric.to(device)
        for module in self._metric.modules():  # wrappers do not always reset what they wrap
            if hasattr(module, "_defaults"):
                module.reset()

    def _places(self) -> Iterator[tuple[str, Any, str]]:
        """Yield (key, module, name) of every state, in the order of the modules."""
        modules: Iterator[tuple[str, nn.Module]] = self._metric.named_modules()
        for path, module in modules:
            owner: Any = module
            for name in getattr(owner, "_defaults", ()):
                yield f"{path}.{name}", owner, name


class _Merged:
    """One state over all batches so far.

    Attributes:
        kind: ``sum``, ``max``, ``min``, ``cat`` or ``stack``.
        parts: The batches' tensors, in order (one for extrema).
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.clear()

    def clear(self) -> None:
        self.parts: list[Tensor] = []
        self._like: list[Any] = []  # of a sum: dtype and shape
        self._units: list[int | None] = []  # of a sum, per element; None: not finite

    @property
    def is_empty(self) -> bool:
        return not (self.parts or self._like)

    def add(self, tensors: list[Tensor]) -> None:
        """Add the state of the batch that follows."""
        # Copies: the metric goes on to write into its own, and inference tensors must not leave their mode.
        copies = [torch.tensor(tensor.detach().cpu().numpy()).to(tensor.dtype) for tensor in map(_plain, tensors)]
        if self.kind == "sum":
            self._add_units(_like(copies[0]), _units(copies[0]))
        elif self.kind in ("max", "min") and self.parts:
            self.parts = [getattr(torch, f"{self.kind}imum")(self.parts[0], copies[0])]
        else:
            self.parts += copies

    def value(self, reduction: Callable[[Tensor], Tensor] | None) -> Tensor:
        """Return the merged tensor as the metric expects it after a merge of several processes."""
        if self.kind == "sum":
            dtype, shape = getattr(torch, self._like[0]), self._like[1]
            whole = [math.nan if units is None else _element(units, dtype) for units in self._units]
            return torch.tensor(whole, dtype=torch.int64 if _is_whole(dtype) else torch.float64).to(dtype).view(shape)
        if self.kind == "cat":
            return torch.cat(self.parts)
        if len(self.parts) == 1:
            return self.parts[0]
        return torch.stack(self.parts) if reduction is None else reduction(torch.stack(self.parts))

    def pack(self) -> list[Any]:
        tensors = save({f"{number:09}": part.contiguous() for number, part in enumerate(self.parts)})
        units = [units if units is None else hex(units) for units in self._units]
        return [self._like, units, base64.b64encode(tensors).decode()]

    def unpack(self, packed: list[Any]) -> None:
        like, units, tensors = packed
        if like:
            self._add_units(like, [None if unit is None else int(unit, 16) for unit in units])
        found = load(base64.b64decode(tensors))
        parts = [found[name] for name in sorted(found)]
        if self.kind in ("max", "min") and self.parts and parts:
            self.parts = [getattr(torch, f"{self.kind}imum")(self.parts[0], parts[0])]
        else:
            self.parts += parts

    def _add_units(self, like: list[Any], units: list[int | None]) -> None:
        if self._like and self._like != like:
            raise ConfigError(f"a state of torchmetrics changed from {self._like} to {like} between batches.")
        mine = self._units or [0] * len(units)
        self._like = like
        self._units = [None if a is None or b is None else a + b for a, b in zip(mine, units, strict=True)]


def _plain(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def _is_whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def _like(tensor: Tensor) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def _units(tensor: Tensor) -> list[int | None]:
    """Return each element exactly: whole numbers as they are, floats in units of 2**-1074, None if not finite."""
    flat: list[Any] = np.asarray(tensor.reshape(-1)).tolist()
    if _is_whole(tensor.dtype):
        return list(map(int, flat))
    units: list[int | None] = []
    for value in flat:
        total = ExactSum()
        if math.isfinite(value):
            total.add(value)
        units.append(total.units if math.isfinite(value) else None)
    return units


def _element(units: int, dtype: torch.dtype) -> int | float:
    return units if _is_whole(dtype) else float(ExactSum(units))


def _numbers(value: Any, name: str) -> Value:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, Tensor):
        places = np.ndindex(*value.shape)
        return {"/".join(map(str, place)): float(value[place]) for place in places}
    if isinstance(value, dict):
        found: dict[str, float] = {}
        for key, item in value.items():
            part = _numbers(item, name)
            found |= {f"{key}/{sub}": number for sub, number in part.items()} if isinstance(part, dict) else {key: part}
        return found
    if isinstance(value, int | float):
        return float(value)
    raise ConfigError(
        f"torchmetrics' {name} computes a {type(value).__name__}, expected a number, a tensor or a dictionary of them. "
        "Hint: a curve is a picture, not a metric to log."
    )


def _never() -> bool:
    return False
