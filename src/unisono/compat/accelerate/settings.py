"""What an ``Accelerator`` is told, under accelerate's names; what it cannot do is refused, with what to do instead."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from unisono.compat.seeds import SEEDS
from unisono.errors import ConfigError

_SHARDED = "Hint: a run's own loop with Run(strategy='fsdp') shards weights; see docs/strategies.md."
_COMPILED = "Hint: torch.compile(model) before prepare()."
_PLUGINS = {
    **dict.fromkeys(("deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin"), _SHARDED),
    **dict.fromkeys(("torch_tp_plugin", "parallelism_config"), _SHARDED),
    **dict.fromkeys(("dynamo_plugin", "dynamo_backend"), _COMPILED),
}
_WITHOUT_EFFECT = ("device_placement", "rng_types")
_HANDLERS = ("DistributedDataParallelKwargs", "InitProcessGroupKwargs")


class DistributedType(StrEnum):
    """How processes work together; of accelerate's values only the first three occur here."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    MEGATRON_LM = "MEGATRON_LM"
    XLA = "XLA"


@dataclass(kw_only=True)
class DataLoaderConfiguration:
    """How loaders are shared out."""

    split_batches: bool = False  #: A loader's batch size is that of all processes.
    even_batches: bool = True  #: An epoch's end may be filled up where a rank would have nothing to compute.
    dispatch_batches: bool | None = None  #: Refused: each rank fetches its own samples.
    use_seedable_sampler: bool = True  #: Without effect: the order is a pure function of seed and epoch.
    non_blocking: bool = False  #: Without effect: copies to a GPU do not block.
    use_stateful_dataloader: bool = False  #: Without effect: a position is the number of a step.


@dataclass(kw_only=True)
class GradientAccumulationPlugin:
    """How gradients are accumulated."""

    num_steps: int = 1  #: Batches of each process in a step.
    adjust_scheduler: bool = True  #: Whether turns without an update count in a schedule's limit, as accelerate has it.
    sync_with_dataloader: bool = True  #: An epoch's end ends a step; False is refused.
    sync_each_batch: bool = False  #: Without effect.


@dataclass
class ProjectConfiguration:
    """Where things are kept."""

    project_dir: str | None = None  #: The run directory.
    logging_dir: str | None = None  #: Of the trackers; None: the run directory.
    automatic_checkpoint_naming: bool = False  #: Without effect: ``save_state()`` keeps the state in the run directory.
    total_limit: int | None = None  #: How many of those states are kept.
    iteration: int = 0  #: Without effect: states are numbered by their step.


class DistributedDataParallelKwargs:
    """Accepted without effect: nothing is wrapped, and unused parameters need no search."""

    def __init__(self, **_: Any) -> None: ...


class InitProcessGroupKwargs(DistributedDataParallelKwargs):
    """Accepted without effect: the launcher decides how ranks meet."""


def check_settings(
    told: Mapping[str, Any],
    precision: str | None,
    data: DataLoaderConfiguration,
    accumulation: GradientAccumulationPlugin,
) -> dict[str, Any]:
    """Return what of `told` is for `Run`, without accelerate's settings that have no effect here."""
    for name, hint in _PLUGINS.items():
        if told.get(name) is not None:
            raise ConfigError(f"{name} is not offered: every rank has the whole model here. {hint}")
    for handler in told.get("kwargs_handlers") or ():
        if type(handler).__name__ not in _HANDLERS:
            raise ConfigError(
                f"a {type(handler).__name__} is not offered. Hint: leave it out; what has no effect here anyway may "
                f"stay: {', '.join(_HANDLERS)}."
            )
    if data.dispatch_batches:
        raise ConfigError(
            "dispatch_batches lets one process read for all; here every rank reads the samples that it computes. "
            "Hint: leave it out; a source that only one can read is unisono.Stream(..., readers='leader')."
        )
    if not accumulation.sync_with_dataloader:
        raise ConfigError(
            "sync_with_dataloader=False lets a step reach over an epoch's end, which no run does. Hint: leave it out."
        )
    if precision not in (None, "no", "bf16"):
        raise ConfigError(
            f"expected mixed_precision 'no' or 'bf16', got {precision!r}. Hint: 'bf16', whose losses need no scaling."
        )
    if told.get("strategy", "exact") != "exact":
        raise ConfigError(
            f"a loop over micro-batches has strategy 'exact', got {told['strategy']!r}. Hint: a run's own loop, "
            "unisono.Run(strategy=...), has all of them."
        )
    known = {*_PLUGINS, *_WITHOUT_EFFECT, "kwargs_handlers"}
    return {name: value for name, value in told.items() if name not in known}


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Set the run's seed, and that of what is drawn from torch's, Python's and NumPy's generators until `prepare`.

    Args:
        seed: Of everything random.
        device_specific: Refused: what is drawn is keyed by replica already, and ranks must build the same model.
        deterministic: Without effect: runs always are.

    Raises:
        ConfigError: After ``prepare``, or with `device_specific`.
    """
    if device_specific:
        raise ConfigError(
            "device_specific gives every process a seed of its own, and ranks must build the same model. Hint: leave "
            "it out: what each micro-batch draws differs anyway."
        )
    SEEDS.set(seed, prepare="accelerator.prepare()")
