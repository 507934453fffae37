"""What a run refuses before its first step: models, optimizers and schedulers that cannot keep its promise."""

import sys
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, float16, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from unisono.checkpoint.values import to_json
from unisono.data.loader import Loader
from unisono.data.sources.stream_loader import StreamLoader
from unisono.errors import CheckpointError, ConfigError
from unisono.strategies.base import Strategy, StrategyContext
from unisono.strategies.objective import Objective
from unisono.strategies.options import ExactOptions, StrategyOptions
from unisono.strategies.parts.clipping import Clipping
from unisono.strategies.parts.flat import sparse_parameters
from unisono.system.messages import warn
from unisono.train.kept_dict import KeptDict
from unisono.train.steps.loop import Batch

BY_NAME = "run.prepare({'G': G, 'D': D}, {'G': torch.optim.Adam(G.parameters()), 'D': ...})"
SEVERAL = f"Hint: leave it out; or several by name: {BY_NAME}."
_LARGEST = 1 << 62  # as in a checkpoint's manifest


def check_parts(model: Any, optimizers: Mapping[str, Any], schedulers: Mapping[str, Any]) -> None:
    """Refuse what cannot be trained exactly; warn of what will not be trained at all.

    Raises:
        ConfigError: A part has the wrong type; the model is wrapped or has lazy parameters; the optimizer holds
            other parameters than the model; the scheduler needs a metric.
    """
    for optimizer in optimizers.values():
        check_kinds(model, optimizer)
    for name, module in model.named_modules():
        if isinstance(module, _wrappers()):
            raise ConfigError(
                f"{name or 'the model'} is wrapped in {type(module).__name__}, which would reduce gradients a second "
                "time, between ranks whose calls differ in number. Hint: pass the plain model."
            )
    _check_parameters(model, optimizers)
    for scheduler in schedulers.values():
        _check_scheduler(scheduler)


def _check_scheduler(scheduler: Any) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigError(
            "ReduceLROnPlateau needs a metric, but a run's scheduler steps after every optimizer step without one. "
            "Hint: callbacks.Plateau with a trainer; else step it yourself after run.evaluate(), and "
            "run.register('plateau', scheduler) to save its state."
        )
    if not all(hasattr(scheduler, name) for name in ("step", "state_dict")):
        hint = " Hint: data goes into run.loader(dataset, batch_size=...)." if hasattr(scheduler, "__len__") else ""
        raise ConfigError(f"expected a scheduler with step() and state_dict(), got {type(scheduler).__name__}.{hint}")


def check_again(*, is_again: bool) -> None:
    """Refuse (`ConfigError`) to prepare a run a second time."""
    if is_again:
        raise ConfigError(
            "run.prepare() was called a second time: the run would go on with what it was given first. "
            "Hint: a Trainer prepares by itself, leave run.prepare() out; several models in one call, by name: "
            f"{BY_NAME}."
        )


def check_kinds(model: Any, optimizer: Any) -> None:
    """Refuse (`ConfigError`) what is no model, or no optimizer."""
    many = (list, tuple, dict)
    if not isinstance(model, nn.Module):
        named = f"models and optimizers by name: {BY_NAME}"
        hint = named if isinstance(model, many) else "an instance, and the model first"
        raise ConfigError(f"expected the model as a torch.nn.Module, got {type(model).__name__}. Hint: {hint}.")
    if not isinstance(optimizer, Optimizer):
        one = f"one optimizer with a group for each part, or models and optimizers by name: {BY_NAME}"
        hint = one if isinstance(optimizer, many) else "run.prepare(model, torch.optim.Adam(model.parameters()))"
        raise ConfigError(
            f"expected the optimizer as a torch.optim.Optimizer, got {type(optimizer).__name__}. Hint: {hint}."
        )


def check_one(model: Any, optimizer: Any) -> None:
    """Refuse (`ConfigError`) several models or optimizers by name where only one can be trained."""
    if isinstance(model, Mapping) or isinstance(optimizer, Mapping):
        raise ConfigError(
            "the Trainer trains one model with one optimizer, got several by name. Hint: run.prepare and a loop of "
            "your own, for batch in run.steps(loader, epochs=...): run.step(batch, loss, update='D')."
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
            shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
            raise ConfigError(f"expected numbers as metrics, got metrics[{name!r}] as {type(value).__name__}{shape}.")
        found[name] = int(value) if isinstance(value, int) and abs(value) < _LARGEST else number
    return found


_OWN_LOSS = "a loss with parameters of its own is part of it: nn.ModuleDict({'model': model, 'loss': loss})"


def _check_parameters(model: nn.Module, optimizers: Mapping[str, Optimizer]) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ConfigError(
            f"the parameter {lazy[0]!r} has no shape yet. Hint: run one sample through the model before run.prepare()."
        )
    groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
    optimized = [id(parameter) for group in groups for parameter in group["params"]]
    strangers = sum(key not in names for key in optimized)
    if strangers:
        raise ConfigError(
            f"the optimizer holds {strangers} of {len(optimized)} parameters that the model does not have. "
            "Hint: create the optimizer from model.parameters() of the very model you pass"
            + ("." if strangers == len(optimized) else f"; {_OWN_LOSS}.")
        )
    # Of several models, one without an optimizer is a teacher or an average.
    held = {*optimized}
    learning = [model] if "" in optimizers else [each for each in model.children() if _holds(each, held)]
    idle = list(dict.fromkeys(
        names[id(parameter)]
        for each in learning
        for parameter in each.parameters()
        if parameter.requires_grad and id(parameter) not in held
    ))  # fmt: skip
    if idle:
        warn(
            f"{len(idle)} trainable parameters are in no group of the optimizer and stay as they are: {idle[0]}"
            f"{', ...' if len(idle) > 1 else ''}. Hint: requires_grad_(False) if that is meant."
        )


def _holds(model: nn.Module, held: Collection[int]) -> bool:
    return any(id(parameter) in held for parameter in model.parameters())


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


def check_objective(objective: Objective, strategy: StrategyOptions) -> Objective:
    """Return it; refuse (`ConfigError`) what the strategy cannot do: to count others than samples, to go over twice."""
    if objective.score is not None and not (strategy.weighs and (strategy.shares_gradients or strategy.is_sharded)):
        raise ConfigError(
            f"weight= and reduction= need the whole batch's sums in every step, which strategy {strategy.name} does "
            "not have with these options. Hint: strategy='exact'; or ddp, allreduce, dp, fsdp, model_parallel without "
            "local steps or islands."
        )
    if objective.embed is not None:
        _check_embed(objective, strategy)
    return objective


def check_closure(optimizer: Optimizer, strategy: StrategyOptions, setting: StrategyContext, *, skips: bool) -> None:
    """Refuse (`ConfigError`) beside an optimizer that computes the loss itself what would change its gradients."""
    clipping = setting.clipping
    wrong = {
        f"strategy {strategy.name}{'' if strategy.shares_gradients else ' with islands'}": "strategy exact",
        "clip_norm or clip_value": "leave it out",
        "precision fp16": "precision bf16",
        "non_finite skip": "non_finite stop",
    }
    is_wrong = (
        strategy.name != "exact" or not strategy.shares_gradients,
        clipping.norm is not None or clipping.value is not None, setting.precision.name == "fp16", skips,
    )  # fmt: skip
    for (what, hint), is_there in zip(wrong.items(), is_wrong, strict=True):
        if is_there:
            raise ConfigError(
                f"{type(optimizer).__name__} computes loss and gradient several times in a step and compares them, "
                f"which does not go with {what}. Hint: {hint}."
            )


def check_precision(name: str, model: nn.Module) -> None:
    """Refuse (`ConfigError`) to scale losses for weights that are float16: so would their gradients be."""
    for parameter_name, parameter in model.named_parameters():
        if name == "fp16" and parameter.dtype is float16:
            raise ConfigError(
                f"precision fp16 computes in float16 from weights in float32, got {parameter_name!r} in float16. "
                "Hint: leave .half() out."
            )


def check_layers(model: nn.Module, strategy: StrategyOptions) -> None:
    """Refuse (`ConfigError`) what a strategy cannot do: ranks that meet in the forward pass, sparse gradients."""
    adds_sparse = strategy.name == "exact" and strategy.shares_gradients and getattr(strategy, "compress", "") == "none"
    if not adds_sparse and (sparse := [*sparse_parameters(model)]):
        raise ConfigError(
            f"{sparse[0]!r} has sparse gradients, which strategy exact adds, without islands and without compress. "
            "Hint: sparse=False where the embedding is made, or strategy='exact'."
        )
    if strategy.meets_in_loss:
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise ConfigError(
                f"{name or 'the model'!r} is a SyncBatchNorm, whose statistics are taken over the ranks: with strategy "
                f"{strategy.name} no result may depend on their number. Hint: BatchNorm takes those of each "
                "micro-batch (batch_size / replicas samples), and its running ones are merged over the batch; "
                "GroupNorm needs none; strategy='ddp' keeps SyncBatchNorm."
            )


def _check_embed(objective: Objective, strategy: StrategyOptions) -> None:
    is_plain = isinstance(strategy, ExactOptions) and strategy.island_steps is None
    embed = objective.embed
    if objective.score is not None:
        raise ConfigError(
            "weight= and reduction= are for losses by micro-batch, got embed= too. Hint: a loss over the whole batch "
            "sees all of it: weigh there."
        )
    if not (is_plain and callable(embed)):
        got = type(embed).__name__ if is_plain else f"strategy {strategy.name}"
        got += " with island_steps" * (isinstance(strategy, ExactOptions) and not is_plain)
        hint = "embed=lambda micro: model(micro.x)" if is_plain else "Run(strategy='exact'), without islands"
        raise ConfigError(
            f"expected {'a function as embed' if is_plain else 'strategy exact for a loss over the whole batch'}, got "
            f"{got}. Hint: {hint}."
        )


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
            f"expected an object with state_dict() and load_state_dict() for {name!r}, got {type(part).__name__}. "
            "Hint: a dictionary of numbers, texts and tensors, which the program changes (docs/common-tasks.md, "
            "'State of your own'); or a small class that has both."
        )
    if isinstance(part, KeptDict):
        try:
            to_json(part.kept, f"registered part {name!r}", {})
        except CheckpointError as error:
            raise ConfigError(f"{error} Hint: register an object of the dictionary by a name of its own.") from error
    if is_open:
        raise ConfigError(f"expected run.register({name!r}, ...) before run.steps(): its state could be lost.")
