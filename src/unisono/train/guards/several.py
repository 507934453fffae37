"""What a run refuses of several models and optimizers, which it is given by name."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from unisono.errors import ConfigError
from unisono.strategies.options import ExactOptions, StrategyOptions
from unisono.strategies.parts.clipping import Clipping
from unisono.strategies.parts.flat import sparse_parameters
from unisono.train.guards.checks import check_kinds
from unisono.train.guards.trained import BY_NAME
from unisono.train.steps.closures import takes_closure


def check_several(
    models: Any, optimizers: Any, schedulers: Any, clip_norm: Any, clipping: Clipping, options: StrategyOptions,
    precision: str,
) -> dict[str, Clipping]:  # fmt: skip
    """Return how the gradients of each optimizer are limited: as `clip_norm` says by name, else as `clipping` does.

    Raises:
        ConfigError: Something is not by name, has a name that does not fit, is there twice, or is without its
            optimizer; or the strategy is not ``exact``, or the precision ``fp16``.
    """
    for what, given in (("models", models), ("optimizers", optimizers)):
        if not isinstance(given, Mapping) or not given:
            raise ConfigError(
                f"expected {what} by name, as the others are, got {type(given).__name__}. Hint: {BY_NAME}; one model "
                "with one optimizer has no names, and Run(clip_norm=...)."
            )
    if not isinstance(options, ExactOptions) or options.island_steps is not None:
        got = "island_steps" if isinstance(options, ExactOptions) else f"strategy {options.name}"
        raise ConfigError(
            f"several models by name are trained by strategy exact alone, got {got}. Hint: leave it out; or put the "
            "models into one nn.Module and their parameters into one optimizer, a group for each."
        )
    if precision == "fp16":
        raise ConfigError("several optimizers would need a scale of losses each, got precision fp16. Hint: bf16.")
    _check_models(models, next(iter(optimizers.values())))
    _check_optimizers(optimizers, next(iter(models.values())))
    for what, given in (("schedulers", schedulers), ("clip_norm", clip_norm)):
        names = sorted(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        if given is not None and not (isinstance(given, Mapping) and given.keys() <= optimizers.keys()):
            raise ConfigError(
                f"expected {what} by the names of optimizers, {sorted(optimizers)}, got {names}. "
                f"Hint: {{{min(optimizers)!r}: ...}}, without those that have none."
            )
    for name, scheduler in (schedulers or {}).items():
        moved = [other for other, one in optimizers.items() if getattr(scheduler, "optimizer", None) is one]
        if moved not in ([], [name]):
            raise ConfigError(f"the scheduler {name!r} moves the optimizer {moved[0]!r}. Hint: give it that name.")
    return {name: Clipping(norm=clip_norm[name]) if name in (clip_norm or {}) else clipping for name in optimizers}


def _check_models(models: Mapping[Any, Any], optimizer: Any) -> None:
    taken = nn.ModuleDict()
    seen: dict[int, str] = {}
    for name, model in models.items():
        if not isinstance(name, str) or not name.isidentifier() or hasattr(taken, name):
            raise ConfigError(
                f"expected names of models that are Python's and no attribute of torch.nn.Module, got {name!r}. "
                "Hint: 'D', 'critic', 'teacher'."
            )
        check_kinds(model, optimizer)
        if sparse_parameters(model):
            raise ConfigError(f"{name!r} has sparse gradients, beside several optimizers. Hint: sparse=False.")
        if seen.setdefault(id(model), name) != name:
            raise ConfigError(f"{seen[id(model)]!r} and {name!r} are the same model. Hint: leave one of them out.")


def _check_optimizers(optimizers: Mapping[Any, Any], model: Any) -> None:
    owners: dict[int, str] = {}
    for name, optimizer in optimizers.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(f"expected names of optimizers as texts, got {name!r}. Hint: {BY_NAME}.")
        check_kinds(model, optimizer)
        if takes_closure(optimizer):
            raise ConfigError(
                f"{type(optimizer).__name__} computes the loss itself, which goes with no other optimizer."
            )
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if owners.setdefault(id(parameter), name) != name:
                raise ConfigError(
                    f"a parameter of shape {tuple(parameter.shape)} is in the optimizers {owners[id(parameter)]!r} and "
                    f"{name!r}, which would both move it. Hint: leave it to one of them."
                )
