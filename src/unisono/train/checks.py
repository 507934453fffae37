"""What a run refuses before its first step: models, optimizers and schedulers that cannot keep its promise."""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from unisono.errors import ConfigError
from unisono.metrics.exact import Metric
from unisono.strategies.clipping import Clipping
from unisono.strategies.options import StrategyOptions


def check_parts(model: Any, optimizer: Any, scheduler: Any) -> None:
    """Refuse what cannot be trained exactly; warn of what will not be trained at all.

    Raises:
        ConfigError: A part has the wrong type; the model is wrapped or has lazy parameters; the optimizer holds
            other parameters than the model, or calls the loss itself; the scheduler needs a metric.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"expected the model as a torch.nn.Module, got {type(model).__name__}.")
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"expected the optimizer as a torch.optim.Optimizer, got {type(optimizer).__name__}. "
            "Hint: run.prepare(model, torch.optim.Adam(model.parameters()))."
        )
    for name, module in model.named_modules():
        if isinstance(module, _wrappers()):
            raise ConfigError(
                f"{name or 'the model'} is wrapped in {type(module).__name__}, which would reduce gradients a second "
                "time, between ranks whose calls differ in number. Hint: pass the plain model."
            )
    _check_parameters(model, optimizer)
    if isinstance(optimizer, LBFGS):
        raise ConfigError("LBFGS calls the loss several times a step, which an exact step cannot replay.")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigError(
            "ReduceLROnPlateau needs a metric, but a run's scheduler steps after every optimizer step without one. "
            "Hint: step it yourself after run.evaluate(), and run.register('plateau', scheduler) to save its state."
        )
    if scheduler is not None and not all(hasattr(scheduler, name) for name in ("step", "state_dict")):
        raise ConfigError(f"expected a scheduler with step() and state_dict(), got {type(scheduler).__name__}.")


def _check_parameters(model: nn.Module, optimizer: Optimizer) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ConfigError(
            f"the parameter {lazy[0]!r} has no shape yet. Hint: run one sample through the model before run.prepare()."
        )
    optimized = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    strangers = sum(key not in names for key in optimized)
    if strangers:
        raise ConfigError(
            f"the optimizer holds {strangers} of {len(optimized)} parameters that the model does not have. "
            "Hint: create the optimizer from model.parameters() of the very model you pass."
        )
    idle = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in optimized
    ]
    if idle:
        warnings.warn(
            f"{len(idle)} trainable parameters are in no group of the optimizer and stay as they are: {idle[0]}"
            f"{', ...' if len(idle) > 1 else ''}. Hint: requires_grad_(False) if that is meant.",
            stacklevel=4,
        )


def _wrappers() -> tuple[type, ...]:
    """Return the classes that reduce gradients by themselves; FSDP's only where the program has imported them."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharded = (fsdp.FullyShardedDataParallel, fsdp.FSDPModule) if fsdp else ()
    return (nn.DataParallel, nn.parallel.DistributedDataParallel, *sharded)


def check_whole(**values: Any) -> None:
    """Refuse values that are not whole numbers of at least 1; None is allowed.

    Raises:
        ConfigError: Names the value.
    """
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ConfigError(f"expected {name} as a whole number, got {value!r} ({type(value).__name__}).")
        if value is not None and value < 1:
            raise ConfigError(f"expected {name} >= 1, got {value}.")


def check_clipping(clipping: Clipping, model: nn.Module) -> None:
    """Refuse to clip by value what has no order.

    Raises:
        ConfigError: The model has complex parameters.
    """
    if clipping.value is not None:
        for name, parameter in model.named_parameters():
            if parameter.is_complex():
                raise ConfigError(
                    f"clip_value sets a largest value for each element, which the complex {name!r} does not have. "
                    "Hint: clip_norm scales the whole gradient."
                )


def check_layers(model: nn.Module, strategy: StrategyOptions) -> None:
    """Refuse layers that meet those of other ranks in the forward pass, where the strategy has no place for it.

    Raises:
        ConfigError: Names the first.
    """
    if strategy.meets_in_loss:
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise ConfigError(
                f"{name or 'the model'!r} is a SyncBatchNorm, whose statistics are taken over the ranks: with strategy "
                f"{strategy.name} no result may depend on their number. Hint: BatchNorm, whose running statistics are "
                "merged over all micro-batches here; or strategy='ddp'."
            )


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """Refuse metrics that could not be merged.

    Raises:
        ConfigError: Names the first, and the adapter where it is torchmetrics'.
    """
    for name, metric in metrics.items():
        if not isinstance(metric, Metric):
            kind = type(metric)
            is_theirs = kind.__module__.partition(".")[0] == "torchmetrics"
            hint = (
                f"unisono.TorchMetric({kind.__name__}(...))"
                if is_theirs
                else "its state is merged, see docs/metrics.md"
            )
            raise ConfigError(f"expected {name!r} to inherit unisono.Metric, got {kind.__name__}. Hint: {hint}.")


def check_detail(detail: bool, strategy: StrategyOptions) -> None:
    """Refuse a detailed record where no rank has the whole weights.

    Raises:
        ConfigError: The strategy is sharded.
    """
    if detail and strategy.is_sharded:
        raise ConfigError(
            f"detail looks at whole weights on one rank, which strategy {strategy.name} spreads over all. "
            "Hint: leave detail out, or repeat the run with strategy exact, which has the same bits."
        )


def check_new_part(name: str, part: Any, registered: Mapping[str, Any]) -> None:
    """Refuse to register what could not be saved.

    Raises:
        ConfigError: The name is taken, or the methods are missing.
    """
    if name in registered:
        raise ConfigError(f"expected a new name, got {name!r}, which is registered already.")
    if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
        raise ConfigError(
            f"expected an object with state_dict() and load_state_dict() for {name!r}, got {type(part).__name__}."
        )
