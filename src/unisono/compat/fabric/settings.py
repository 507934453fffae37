"""What a ``Fabric`` is told, under Fabric's names; what it cannot do is refused, with what to do instead."""

from typing import Any

from unisono.compat.seeds import SEEDS
from unisono.compat.turns import Words
from unisono.errors import ConfigError

WORDS = Words(
    "fabric", "fabric.setup()", "Fabric(accumulate_grad_batches=g), with optimizer.step() where (i + 1) % g == 0"
)
_PRECISIONS = {None: "fp32", "32": "fp32", "32-true": "fp32", "bf16": "bf16", "bf16-mixed": "bf16"}
_DEVICES = {"auto": None, "cpu": "cpu", "gpu": None, "cuda": None}
_STRATEGIES = ("auto", "ddp", "ddp_spawn", "ddp_fork", "ddp_notebook", "ddp_find_unused_parameters_true")


def precision_of(told: Any) -> str:
    """Return ``fp32`` or ``bf16`` for a precision in Fabric's words."""
    if (key := None if told is None else str(told)) not in _PRECISIONS:
        raise ConfigError(
            f"expected precision '32-true' or 'bf16-mixed', got {told!r}. Hint: 'bf16-mixed', whose losses need no "
            "scaling and whose weights stay float32; a run's own loop has fp16 too: unisono.Run(precision='fp16')."
        )
    return _PRECISIONS[key]


def device_of(accelerator: Any) -> str | None:
    """Return the kind of device for an accelerator in Fabric's words; None: a GPU if there is one."""
    if accelerator not in _DEVICES:
        raise ConfigError(f"expected accelerator 'auto', 'cpu', 'gpu' or 'cuda', got {accelerator!r}.")
    return _DEVICES[accelerator]


def processes_of(devices: Any, num_nodes: int) -> int | None:
    """Return the number of processes that a script has asked for; None: as many as there are."""
    if isinstance(devices, list | tuple):
        devices = len(devices)
    if devices in ("auto", -1, "-1"):
        return None
    if isinstance(devices, str) and "," in devices:
        devices = len([each for each in devices.split(",") if each.strip()])
    if not str(devices).isdigit() or int(devices) < 1 or num_nodes < 1:
        raise ConfigError(f"expected devices of at least 1, a list of them or 'auto', got {devices!r}.")
    return int(devices) * num_nodes


def check_strategy(strategy: Any, plugins: Any) -> None:
    """Refuse strategies that are not data parallel, and plugins."""
    if strategy not in _STRATEGIES:
        raise ConfigError(
            f"a loop over micro-batches has strategy 'auto' or 'ddp', got {strategy!r}. Hint: a run's own loop, "
            "unisono.Run(strategy='fsdp') and others; see docs/strategies.md."
        )
    if plugins:
        raise ConfigError(
            "plugins are not offered. Hint: leave them out: the launcher knows the cluster, precision= the precision."
        )


def seed_everything(seed: int | None = None, workers: bool | None = None, verbose: bool = True) -> int:
    """Set the run's seed, and that of what is drawn from torch's, Python's and NumPy's generators until ``setup``.

    Args:
        seed: Of everything random; None: that of before, or 0.
        workers: Without effect: what a sample draws is keyed by the sample.
        verbose: Without effect.

    Returns:
        The seed.

    Raises:
        ConfigError: After ``fabric.setup()``.
    """
    chosen = int(SEEDS.pending if seed is None else seed)
    SEEDS.set(chosen, "seed_everything()", WORDS.prepare)
    return chosen
