"""The score: everything that defines a run's result, as one JSON-able dictionary (`score.json`).

Model, initial weights, optimizer, schedule, data, seed, batch size, replicas, threads. The number of workers,
machines and epochs is not in it: a run may go on longer, and anywhere.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.checkpoint.format import fingerprint, to_json
from unisono.data.loader import Loader
from unisono.data.same_samples import first_samples
from unisono.data.sampler import ExactSampler
from unisono.data.sources.stream_loader import StreamLoader
from unisono.errors import CheckpointError, ConfigError
from unisono.observe.compare import ALLOWED, MODULES, SAMPLES
from unisono.strategies.options import StrategyOptions
from unisono.strategies.parts.flat import sparse_parameters

SCORE_VERSION = 1
#: Of what a module says of itself that depends on the process, the device or the moment.
_PASSING = re.compile(
    r"(?: at )?\b0x[0-9a-fA-F]+|\(?\b(?:cpu|cuda|mps|xpu|GPU)\b(?:[: ]\d+)?\)?|training=(?:True|False)"
)


def checked_settings(settings: Any) -> dict[str, Any]:
    """Return `settings` of a run as a dictionary; `ConfigError` names what a score cannot hold."""
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(f"expected settings as a dictionary, got {type(settings).__name__}.")
    found = dict(settings or {})
    try:
        for name, value in found.items():
            to_json(name, "the name of a setting")
            to_json(value, f"settings[{name!r}]")
    except CheckpointError as error:
        raise ConfigError(
            f"{error} Hint: settings are part of the score, which is kept as JSON: str(...), list(...), .item()."
        ) from error
    return found


def describe_model(model: nn.Module) -> dict[str, Any]:
    """Return class, size, structure hash and initial weights' hash of a model."""
    lines = [
        f"{name} {tuple(parameter.shape)} {parameter.dtype} {parameter.requires_grad}"
        for name, parameter in model.named_parameters()
    ]
    return {
        "class": type(model).__qualname__,
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "structure": hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16],
        "initial_weights": fingerprint(model)[:16],
        **({"sparse": sparse} if (sparse := [*sparse_parameters(model)]) else {}),
    }


def describe_modules(model: nn.Module) -> dict[str, str]:
    """Return what each module is, by its name: class and, as far as that stays the same, `extra_repr`.

    It has what no parameter shows: an activation, the ``p`` of a dropout, a stride. Left out are addresses, devices,
    ``training``, and texts with braces: a set has another order in each process.
    """
    found = {}
    for name, module in model.named_modules():
        text = " ".join(_PASSING.sub("", module.extra_repr()).split())
        text = "" if "{" in text else text
        if name or text:  # the class of the whole is told beside it
            found[name] = f"{type(module).__name__}({text})"
    return found


def describe_optimizer(optimizer: Optimizer, scheduler: Any) -> dict[str, Any]:
    """Return the classes and settings of optimizer and scheduler, as they stand before the first step."""
    groups = [
        {
            key: value if isinstance(value, str | int | float | bool | None) else repr(value)
            for key, value in _with_numbers({**group, "params": None}).items()
        }
        | {"params": len(group["params"])}
        for group in optimizer.param_groups
    ]
    return {
        "class": type(optimizer).__qualname__,
        "groups": groups,
        "scheduler": None if scheduler is None else type(scheduler).__qualname__,
        "scheduler_state": None if scheduler is None else to_json(_with_numbers(scheduler.state_dict()), "scheduler"),
    }


def _with_numbers(value: Any) -> Any:
    """Return nested settings with tensors of one element, as learning rates may be, as plain numbers."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(_with_numbers(item) for item in value)
    return {key: _with_numbers(item) for key, item in value.items()} if type(value) is dict else value


def describe_data(dataset: Any, sampler: ExactSampler) -> dict[str, Any]:
    """Return what identifies the data: class, length, and the data set's own ``fingerprint`` if it has one."""
    return {
        "class": type(dataset).__qualname__,
        "num_samples": sampler.num_samples,
        "shuffle": sampler.shuffle,
        "fingerprint": getattr(dataset, "fingerprint", None),
        **({} if sampler.order is None else {"plan": sampler.order.score}),
        **({} if sampler.last == "short" else {"last": sampler.last}),
    }


def describe_run(
    run: Any, parts: Mapping[str, Any], strategy: StrategyOptions, loader: Loader | StreamLoader
) -> dict[str, Any]:
    """Return the score of a run, in JSON's types; `parts` are what `describe_model` and the like say.

    Before the run is open it has hashes of the data's first samples too. Where drift is allowed these, and the modules,
    have other names than those recorded, so only ranks compare them.

    Raises:
        DataError: A sample is another one when it is fetched again.
    """
    schedule = loader.schedule if isinstance(loader, StreamLoader) else loader.sampler.schedule
    score = {
        "version": SCORE_VERSION,
        "seed": run.seed,
        "replicas": run.replicas,
        "batch_size": schedule.first,
        **schedule.score,
        "threads": run.threads,
        **run.clipping.score,
        **run.non_finite.score,
        **run.precision.score,
        "strategy": strategy.score(),
        **{name: part for name, part in parts.items() if name != MODULES},
        "data": loader.described
        if isinstance(loader, StreamLoader)
        else describe_data(loader.fetcher.dataset, loader.sampler),
        "settings": run.settings,
    }
    allowed = ALLOWED * run._allow_drift
    if isinstance(loader, Loader) and not run._progress.is_open and (hashes := first_samples(loader)):
        score[SAMPLES] = {name + allowed: each for name, each in hashes.items()}
    score[MODULES + allowed] = parts[MODULES]  # last: they are many
    found: dict[str, Any] = to_json(score, "score")
    return found
