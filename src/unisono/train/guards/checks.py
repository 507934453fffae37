"""What a run refuses before its first step: models, optimizers and schedulers that cannot keep its promise."""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from unisono.collectives.places import check_places
from unisono.data.loader import Loader
from unisono.data.sources.stream_loader import StreamLoader
from unisono.errors import ConfigError
from unisono.metrics.base import Metric
from unisono.strategies.base import Strategy
from unisono.strategies.options import StrategyOptions
from unisono.strategies.parts.clipping import Clipping
from unisono.train.loop import Batch
from unisono.world import World

_LARGEST = 1 << 62  # as in a checkpoint's manifest


def check_parts(model: Any, optimizer: Any, scheduler: Any) -> None:
    """Refuse what cannot be trained exactly; warn of what will not be trained at all.

    Raises:
        ConfigError: A part has the wrong type; the model is wrapped or has lazy parameters; the optimizer holds
            other parameters than the model, or calls the loss itself; the scheduler needs a metric.
    """
    check_kinds(model, optimizer)
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
        hint = " Hint: data goes into run.loader(dataset, batch_size=...)." if hasattr(scheduler, "__len__") else ""
        raise ConfigError(f"expected a scheduler with step() and state_dict(), got {type(scheduler).__name__}.{hint}")


def check_kinds(model: Any, optimizer: Any, *, is_again: bool = False) -> None:
    """Refuse (`ConfigError`) what is no model, or no optimizer, and a second pair of them."""
    many = (list, tuple, dict)
    if is_again:
        raise ConfigError(
            "run.prepare() was called a second time: a run trains one model with one optimizer, and the first would "
            "stay as it is. Hint: put both models into one nn.Module and their parameters into one optimizer, a group "
            "for each; or train them in two runs."
        )
    if not isinstance(model, nn.Module):
        hint = " Hint: one module that holds them all, as nn.ModuleDict({...}) does." if isinstance(model, many) else ""
        raise ConfigError(f"expected the model as a torch.nn.Module, got {type(model).__name__}.{hint}")
    if not isinstance(optimizer, Optimizer):
        one = "one optimizer, with a group for each part: torch.optim.Adam([{'params': ..., 'lr': ...}, ...])"
        hint = one if isinstance(optimizer, many) else "run.prepare(model, torch.optim.Adam(model.parameters()))"
        raise ConfigError(
            f"expected the optimizer as a torch.optim.Optimizer, got {type(optimizer).__name__}. Hint: {hint}."
        )


def plain_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as Python's numbers; `ConfigError` where ``float`` does not take one, or a name is no text."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            number = None if isinstance(value, str | bytes) or not isinstance(name, str) else float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            number = None
        if number is None:
            raise ConfigError(f"expected numbers as metrics, got metrics[{name!r}] as {type(value).__name__}.")
        found[name] = int(value) if isinstance(value, int) and abs(value) < _LARGEST else number
    return found


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


def check_transport(transport: Any) -> None:
    """Refuse (`ConfigError`) a transport that is not known."""
    if isinstance(transport, str) and transport not in ("auto", "gloo", "mpi"):
        raise ConfigError(f"expected transport 'auto', 'gloo', 'mpi' or a Transport, got {transport!r}.")


def check_loader(loader: Any) -> None:
    """Refuse (`ConfigError`) to step over what is not from `Run.loader`."""
    if not isinstance(loader, Loader | StreamLoader):
        what = "its .dataset" if hasattr(loader, "dataset") else "the data set"
        raise ConfigError(
            f"expected a loader from run.loader(dataset, ...), got {type(loader).__name__}. "
            f"Hint: run.steps(run.loader(DATASET, batch_size=...), epochs=...) with {what} as DATASET."
        )


def check_batch(batch: Any) -> None:
    """Refuse (`ConfigError`) to do a step with what is not from `Run.steps`."""
    if not isinstance(batch, Batch):
        raise ConfigError(
            f"expected the batch that run.steps() yields, got {type(batch).__name__}. Hint: for batch in "
            "run.steps(loader, epochs=...): run.step(batch, lambda micro: ...); inputs and targets are micro.x and "
            "micro.y there."
        )


def check_loadable(
    strategy: Strategy, options: StrategyOptions, registered: Mapping[str, Any], *, is_open: bool
) -> None:
    """Refuse (`ConfigError`) to fill a prepared model once steps have begun, or where copies would stay behind."""
    if is_open:
        raise ConfigError("expected run.load_weights(...) before run.steps(): the weights are part of the score.")
    copies = [name for name, part in registered.items() if holds_tensors(part.state_dict())]
    who = f"strategy {options.name}" if not strategy.keeps_equal or strategy.is_sharded else ""
    if who or copies:
        raise ConfigError(
            f"{who or repr(copies[0])} may hold copies of the prepared model's weights, which would stay as they are. "
            "Hint: run.load_weights(path, model) before run.prepare(), or before the Trainer is made."
        )


def holds_tensors(state: Any) -> bool:
    """Whether there is a tensor in nested lists, tuples and dictionaries."""
    if isinstance(state, dict):
        return any(holds_tensors(value) for value in state.values())
    if isinstance(state, list | tuple):
        return any(holds_tensors(value) for value in state)
    return isinstance(state, Tensor)


def check_clipping(clipping: Clipping, model: nn.Module) -> None:
    """Refuse (`ConfigError`) to clip complex parameters by value: they have no order."""
    if clipping.value is not None:
        for name, parameter in model.named_parameters():
            if parameter.is_complex():
                raise ConfigError(
                    f"clip_value sets a largest value for each element, which the complex {name!r} does not have. "
                    "Hint: clip_norm scales the whole gradient."
                )


def check_layers(model: nn.Module, strategy: StrategyOptions) -> None:
    """Refuse (`ConfigError`) layers that meet those of other ranks in the forward pass, where the strategy does not."""
    if strategy.meets_in_loss:
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise ConfigError(
                f"{name or 'the model'!r} is a SyncBatchNorm, whose statistics are taken over the ranks: with strategy "
                f"{strategy.name} no result may depend on their number. Hint: BatchNorm, whose running statistics are "
                "merged over all micro-batches here; or strategy='ddp'."
            )


def check_metrics(metrics: Mapping[str, Any], world: World) -> None:
    """Refuse metrics that cannot run on these ranks (`PlaceError`) or not be merged (`ConfigError`)."""
    check_places(metrics, world, everywhere=True)
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
    """Refuse (`ConfigError`) a detailed record where no rank has the whole weights."""
    if detail and strategy.is_sharded:
        raise ConfigError(
            f"detail looks at whole weights on one rank, which strategy {strategy.name} spreads over all. "
            "Hint: leave detail out, or repeat the run with strategy exact, which has the same bits."
        )


def check_new_part(name: str, part: Any, registered: Mapping[str, Any], *, is_open: bool) -> None:
    """Refuse (`ConfigError`) to register what could not be saved: a name twice, no methods, or a run that is open."""
    if name in registered:
        raise ConfigError(f"expected a new name, got {name!r}, which is registered already.")
    if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
        raise ConfigError(
            f"expected an object with state_dict() and load_state_dict() for {name!r}, got {type(part).__name__}."
        )
    if is_open:
        raise ConfigError(f"expected run.register({name!r}, ...) before run.steps(): its state could be lost.")
