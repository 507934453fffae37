"""What a finished step was made of: losses and gradients of single samples, ranges of activations, histograms.

In: the model as the step began with it, and how its micro-batches are fetched. Out: plain values. Nothing here is part
of the step: the passes are its own, and whoever calls it puts weights, buffers and generators back.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from statistics import median
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unisono.data.batches import change_tensors
from unisono.strategies.objective import Objective
from unisono.strategies.parts.backward import checked_loss
from unisono.strategies.parts.weighing import read_weight

Gradient = dict[str, Tensor]
"""By name of a parameter; those that have none are left out."""
DECADES = range(-9, 2)
"""A histogram counts magnitudes below 1e-9, from 1e-9 to below 1e-8, ..., from 10 on; zeros apart."""
_COLUMNS, _ROWS, _TOKENS, _FEW = 28, 14, 200, 8  # of what is shown of a sample
_SHADES = " .:-=+*#%@"


@final
class Examination:
    """One step, looked at.

    Args:
        step: 1-based; for messages.
        model: Its weights and buffers are those that the step began with.
        objective: Of the step, as it is computed (under autocast).
        parts: Which places of the batch each replica has.
        fetch: From a replica and places of the batch to their micro-batch; the replica's generators are set after it.
        gradient: What the step has left in ``param.grad`` before any clipping; empty where it was skipped.
    """

    def __init__(
        self, step: int, model: nn.Module, objective: Objective, parts: Sequence[range],
        fetch: Callable[[int, Sequence[int]], Any], gradient: Gradient,
    ) -> None:  # fmt: skip
        self._step, self._model, self._objective = step, model, objective
        self._parts, self._fetch, self._gradient = parts, fetch, gradient
        self._norm = _norm(gradient) if gradient else math.nan
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._is_mean = objective.reduction == "mean" or objective.weight is not None  # and not a plain sum
        self._start = [(buffer, buffer.clone()) for buffer in model.buffers()]
        self._statistics: dict[int, dict[_BatchNorm, tuple[Tensor, Tensor]]] = {}

    def look(self) -> tuple[list[float], dict[str, Any]]:
        """Compute the step's passes again; return each replica's loss; ranges of activations, gradients' histograms."""
        ranges: dict[str, list[float]] = {}
        with self._watched(ranges):
            _, self._total, losses, _ = self._passes()
        return losses, {
            "gradient_norm": self._norm,
            "activations": {
                name: {"least": least, "largest": most, "rms": math.sqrt(square / max(1, count)), "not_finite": bad}
                for name, (least, most, square, count, bad) in ranges.items()
            },
            "gradients": {name: _histogram(gradient) for name, gradient in self._gradient.items()},
        }

    def without(self, left_out: Collection[int]) -> dict[str, Any]:
        """Return loss and gradient of the step without the samples at some places, beside the step's; after `look`."""
        gradient, _, _, loss = self._passes(left_out)
        norm, dot = _norm(gradient), _dot(gradient, self._gradient)
        _add(gradient, self._gradient, -1)
        told = {"cosine": _ratio(dot, norm * self._norm), "change": _ratio(_norm(gradient), self._norm)}
        return {"loss": loss, "gradient_norm": norm, **told}

    def samples(self) -> tuple[list[dict[str, float]], float]:
        """Return loss and gradient of each sample by itself, and what leaving it out does; after `look`.

        The model is in evaluation mode (no dropout); batch norms take the statistics of the sample's micro-batch.

        Returns:
            For each place of the batch: ``replica``; ``loss``; ``gradient_norm``; ``change``: the length of the
            difference that leaving it out makes to the step's gradient g, by that of g; ``cosine``: of the angle
            between both (these two by g less the sample's share of it); ``scale``: the root mean square of its
            floating-point numbers by the median of the samples', NaN where it has none. And the cosine between the sum
            of all samples' shares and g: 1 where nothing but the samples has a say.
        """
        found, everything, sizes = [], Gradient(), []
        with self._evaluated():
            for replica, part in enumerate(self._parts):
                self._restore(self._statistics.get(replica, {}))
                for place in part:
                    micro = self._fetch(replica, [place])
                    sizes.append(_size(micro))
                    loss, count, gradient = self._pass(micro, 1)
                    factor = self._amount(count) / self._total
                    _add(everything, gradient, factor)
                    told = self._left_out(gradient, factor, count)
                    found.append({"replica": replica, "loss": loss, "gradient_norm": _norm(gradient), **told})
        self._restore({})
        usual = median(sizes)
        for one, size in zip(found, sizes, strict=True):
            one["scale"] = _ratio(size, usual)
        return found, _ratio(_dot(everything, self._gradient), _norm(everything) * self._norm)

    def _left_out(self, gradient: Gradient, factor: float, count: float) -> dict[str, float]:
        """Return what the step's gradient is without a sample's: s (g - f g_i), where the rest counts s times more."""
        own, dot, norm = _norm(gradient), _dot(gradient, self._gradient), self._norm
        rest = self._total - count if self._is_mean else self._total
        grown = self._total / rest if rest > 0 else math.nan
        left = max(0.0, norm**2 - 2 * factor * dot + (factor * own) ** 2) ** 0.5
        more, less = grown - 1, grown * factor
        change = max(0.0, (more * norm) ** 2 - 2 * more * less * dot + (less * own) ** 2) ** 0.5
        return {"change": _ratio(change, norm), "cosine": _ratio(norm**2 - factor * dot, norm * left)}

    def _passes(self, left_out: Collection[int] = ()) -> tuple[Gradient, float, list[float], float]:
        """Return the gradient of all replicas' passes, what their samples count, their losses, and the step's."""
        total, counted, losses, summed = Gradient(), 0.0, [], 0.0
        for replica, part in enumerate(self._parts):
            if places := [place for place in part if place not in left_out]:
                self._replica = replica
                self._restore({})
                loss, count, gradient = self._pass(self._fetch(replica, places), len(places))
                _add(total, gradient, amount := self._amount(count))
                losses.append(loss)
                counted, summed = counted + count, summed + amount * loss
        self._restore({})
        counted = counted if self._is_mean else 1.0
        gradient = {name: value / counted for name, value in total.items()}
        return gradient, counted, losses, _ratio(summed, counted)

    def _pass(self, micro: Any, num_samples: int) -> tuple[float, float, Gradient]:
        """Return the loss of a micro-batch, what it counts, and its gradient."""
        objective = self._objective
        loss, count = objective.loss(micro), float(num_samples)
        if objective.weight is not None:
            count = read_weight(objective.weight(micro))
        if count == 0 and objective.reduction == "mean":
            return 0.0, 0.0, {}
        gradients = torch.autograd.grad(checked_loss(loss, self._step), [*self._trained.values()], allow_unused=True)
        named = zip(self._trained, gradients, strict=True)
        return loss.item(), count, {name: g.to_dense() if g.is_sparse else g for name, g in named if g is not None}

    def _amount(self, count: float) -> float:
        return count if self._objective.reduction == "mean" else 1.0

    def _restore(self, statistics: dict[_BatchNorm, tuple[Tensor, Tensor]]) -> None:
        """Put the buffers back as the step began with them; batch norms with other statistics, where they are given."""
        with torch.no_grad():
            for buffer, start in self._start:
                buffer.copy_(start)
            for norm, (variance, mean) in statistics.items():
                if norm.running_mean is not None and norm.running_var is not None:
                    norm.running_var.copy_(variance)
                    norm.running_mean.copy_(mean)

    @contextlib.contextmanager
    def _evaluated(self) -> Iterator[None]:
        """Put the model into evaluation mode; a recurrent layer of cuDNN has a backward pass in training mode alone."""
        modes = {module: module.training for module in self._model.modules()}
        try:
            for module in modes:
                module.training = isinstance(module, nn.RNNBase) and module.training
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode

    @contextlib.contextmanager
    def _watched(self, ranges: dict[str, list[float]]) -> Iterator[None]:
        """Note the ranges of what modules without modules in them return, and what batch norms see."""

        def note(name: str, _: nn.Module, __: Any, output: Any) -> None:
            for value in tensors_of(output):
                if value.is_floating_point() and value.numel():
                    _widen(ranges.setdefault(name, [math.inf, -math.inf, 0.0, 0, 0]), value.detach())

        def norm_saw(norm: nn.Module, given: tuple[Any, ...]) -> None:
            seen = given[0].detach().float()
            found = torch.var_mean(seen, [axis for axis in range(seen.dim()) if axis != 1], correction=0)
            self._statistics.setdefault(self._replica, {})[norm] = found  # type: ignore[index]  # one of them

        hooks = []
        for name, module in self._model.named_modules():
            if not any(True for _ in module.children()):
                hooks.append(module.register_forward_hook(functools.partial(note, name)))
            if isinstance(module, _BatchNorm) and module.training:
                hooks.append(module.register_forward_pre_hook(norm_saw))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def tensors_of(data: Any) -> list[Tensor]:
    """Return the tensors of a batch or an output, in order."""
    found: list[Tensor] = []
    change_tensors(data, found.append)
    return found


def shown(micro: Any) -> dict[str, Any]:
    """Return what can be shown of a micro-batch of one sample.

    Returns:
        ``picture``: of an image (1, 1 or 3, height, width), its shades in lines of characters; else ``tokens``: the
        first of a row of whole numbers; and ``values``: a few numbers, such as a label.
    """
    found: dict[str, Any] = {"values": []}
    for tensor in tensors_of(micro):
        if tensor.numel() == 1:
            found["values"].append(tensor.item())
        elif tensor.is_floating_point() and tensor.numel() <= _FEW:
            found["values"] += tensor.flatten().tolist()
        elif tensor.is_floating_point() and tensor.dim() == 4 and tensor.shape[1] in (1, 3):
            found.setdefault("picture", _picture(tensor[0].float().mean(0)))
        elif not tensor.is_floating_point() and not tensor.is_complex() and tensor.dim() < 3:
            found.setdefault("tokens", tensor.flatten()[:_TOKENS].tolist())
    return found


def _picture(image: Tensor) -> list[str]:
    height, width = image.shape
    columns = min(_COLUMNS, 2 * width)
    rows = min(_ROWS, max(1, round(columns * height / width / 2)))
    small = nn.functional.interpolate(image[None, None], (rows, columns), mode="area")[0, 0]
    least, most = small.aminmax()
    shades = ((small - least) / (most - least).clamp_min(1e-12) * (len(_SHADES) - 1)).round().long()
    return ["".join(_SHADES[shade] for shade in row) for row in shades.tolist()]


def _size(micro: Any) -> float:
    """Return the root mean square of a micro-batch's floating-point numbers, single ones (a target) apart."""
    values = [each.double() for each in tensors_of(micro) if each.is_floating_point() and each.numel() > 1]
    count = sum(each.numel() for each in values)
    return math.sqrt(_ratio(math.fsum(each.square().sum().item() for each in values), count))


def _widen(known: list[float], value: Tensor) -> None:
    finite = value[value.isfinite()].double()
    if finite.numel():
        least, most = finite.aminmax()
        known[0], known[1] = min(known[0], least.item()), max(known[1], most.item())
    known[2] += finite.square().sum().item()
    known[3] += finite.numel()
    known[4] += value.numel() - finite.numel()


def _histogram(gradient: Tensor) -> dict[str, Any]:
    """Return the norm of a parameter's gradient, and its elements by magnitude: see `DECADES`."""
    magnitudes = gradient.detach().abs().flatten().double()
    finite = magnitudes[magnitudes.isfinite()]
    edges = torch.tensor([10.0**power for power in DECADES], dtype=torch.float64, device=finite.device)
    places = torch.bucketize(finite[finite > 0], edges, right=True)
    counts = torch.bincount(places, minlength=len(DECADES) + 1).tolist()
    zeros, bad = int((finite == 0).sum()), magnitudes.numel() - finite.numel()
    return {"norm": finite.norm().item(), "counts": counts, "zeros": zeros, "not_finite": bad}


def _add(total: Gradient, gradient: Gradient, factor: float) -> None:
    for name, value in gradient.items():
        total[name] = value * factor if name not in total else total[name].add_(value, alpha=factor)


def _norm(gradient: Gradient) -> float:
    return math.sqrt(sum(value.norm(dtype=torch.float64).item() ** 2 for value in gradient.values()))


def _dot(left: Gradient, right: Gradient) -> float:
    both = [(left[name].flatten(), right[name].flatten()) for name in left.keys() & right.keys()]
    return math.fsum((a.double() @ b.double()).item() for a, b in both)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
