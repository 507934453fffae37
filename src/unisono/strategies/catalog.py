"""The list of strategies: found by name, with options as typed or as values (no torch here)."""

from collections.abc import Mapping
from typing import Any

from unisono.errors import ConfigError
from unisono.options.fields import Option, options_of
from unisono.strategies.options import (
    AllReduceOptions,
    BalancedDPOptions,
    DDPOptions,
    DPOptions,
    ExactOptions,
    FSDPOptions,
    ModelParallelOptions,
    StrategyOptions,
)
from unisono.strategies.pipelines.options import PipelineOptions
from unisono.strategies.servers.options import AsyncPSOptions, PSOptions
from unisono.system.hints import nearest

CATALOG: Mapping[str, type[StrategyOptions]] = {
    kind.name: kind
    for kind in (
        ExactOptions, DDPOptions, AllReduceOptions, PSOptions, AsyncPSOptions, DPOptions, BalancedDPOptions,
        FSDPOptions, ModelParallelOptions, PipelineOptions,
    )
}  # fmt: skip
"""Every strategy by name."""

_FREE = "strategy('ddp', find_unused_parameters=True); exact needs no such option"
_ELSEWHERE = {
    "auto": "leave it out: exact",
    "ddp_find_unused_parameters_true": _FREE,
    "ddp_spawn": "ddp; `unisono run` or unisono.launch starts the processes",
    "ddp_notebook": "ddp; unisono.launch starts the processes",
    **dict.fromkeys(("deepspeed", "zero", "fsdp2"), "fsdp shards weights, gradients and optimizer state"),
    **dict.fromkeys(("tensor_parallel", "tp"), "there is no tensor parallelism; pipeline and fsdp divide a model"),
}
"""Strategies of other libraries, and what is written here."""


def find(name: str, given: Mapping[str, Any] | None = None) -> StrategyOptions:
    """Return a strategy by name, with some of its options.

    Args:
        name: One of `CATALOG`.
        given: Options by name; a text, as typed, is read as the option's type.

    Raises:
        ConfigError: No such strategy or option, or a value that it does not take.

    Example:
        >>> find("exact", {"shares": "1,2,2"}).place(5, 3)
        [range(0, 1), range(1, 3), range(3, 5)]
    """
    if name not in CATALOG:
        hint = f" Hint: {_ELSEWHERE[name]}." if name in _ELSEWHERE else nearest(name, CATALOG)
        raise ConfigError(f"expected a strategy: {', '.join(CATALOG)}; got {name!r}.{hint}")
    kind = CATALOG[name]
    known = options_of(kind)
    given = _spelled(kind, given or {})
    for key in given:
        if key not in known:
            if key in kind.elsewhere:
                raise ConfigError(f"strategy {name} has no option {key!r}. Hint: {kind.elsewhere[key]}")
            if key == "devices":  # other launchers' word for the number of processes
                raise ConfigError(
                    f"strategy {name} has no option 'devices'. Hint: -n {given[key]} (workers=) for so many processes, "
                    "each with a GPU of its own where there are GPUs; --strategy dp --devices for several in one."
                )
            owners = [other.name for other in CATALOG.values() if key in options_of(other)]
            hint = f" It is an option of {', '.join(owners)}." if owners else nearest(key, known)
            raise ConfigError(f"strategy {name} has no option {key!r}; it has {', '.join(known) or 'none'}.{hint}")
    try:
        values = {key: known[key].read(value) for key, value in given.items()}
    except ConfigError as error:
        raise ConfigError(f"strategy {name}: {error}") from None
    return kind(**values)


def _spelled(kind: type[StrategyOptions], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options under the names that they have here."""
    found = {}
    for key, value in given.items():
        name = kind.spellings.get(key, key)
        if name in found:
            other = next(old for old in given if kind.spellings.get(old) == name)
            raise ConfigError(f"strategy {kind.name}: {other} is another name of {name}. Hint: leave one of them out.")
        found[name] = value
    return found


def resolve(strategy: "str | StrategyOptions") -> StrategyOptions:
    """Return the options of a strategy that is given by name or as they are."""
    if isinstance(strategy, str):
        return find(strategy)
    if not isinstance(strategy, StrategyOptions):
        raise ConfigError(
            f"expected strategy as a name ({', '.join(CATALOG)}) or as unisono.strategy(name, ...), "
            f"got {type(strategy).__name__}."
        )
    return strategy


def strategy(name: str, /, **options: Any) -> StrategyOptions:
    """Return a strategy with some of its options, for ``Run(strategy=...)``.

    Raises:
        ConfigError: No such strategy or option, or a value that it does not take.

    Example:
        >>> strategy("exact", shares=(1, 2)).name
        'exact'
    """
    return find(name, options)


def all_options() -> dict[str, tuple[list[str], Option]]:
    """Return every option of every strategy by name: the strategies that have it, and what it is."""
    found: dict[str, tuple[list[str], Option]] = {}
    for kind in CATALOG.values():
        for name, item in options_of(kind).items():
            found.setdefault(name, ([], item))[0].append(kind.name)
    return found
