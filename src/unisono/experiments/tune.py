"""Which workers, threads, loader processes and bucket size are fastest for a recipe on this machine."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.experiments.scaling import check_steps, try_once
from unisono.experiments.trials import Tell, silent, starter, turns
from unisono.launchers.scratch import scratch_directory
from unisono.scaling.choice import Candidate, choose, spell
from unisono.system.machine import usable_cores

BUCKETS_MB = (1.0, 4.0, 25.0)
_BUCKET_OPTIONS = {"ddp": "bucket_cap_mb", "allreduce": "bucket_mb"}


def tune(
    recipe: str, *, repeat: int = 2, steps: int = 40, warmup: int = 8, loaders: Sequence[int] = (0, 1, 2),
    strategy: str = "exact", launch: Mapping[str, Any] | None = None, tell: Tell = silent, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Measure settings of a recipe, and propose the fastest; nothing is changed. `launch`: more of the `LaunchSpec`.

    Returns:
        What ``unisono bench tune --json`` prints: the stages with all that was tried, the proposal, its command.
    """
    check_steps(steps, warmup)
    stages: list[dict[str, Any]] = []
    chosen: dict[str, Any] = {}

    def settle(what: str, settings: Sequence[dict[str, Any]]) -> None:
        nonlocal chosen
        given = {**options, "strategy": strategy}
        tried = _try_all(
            recipe, [{**chosen, **setting} for setting in settings], given, launch or {}, (repeat, steps, warmup), tell
        )
        best, why = choose(tried)
        chosen = best.setting
        rows = [{"setting": one.setting, "samples_per_s": one.median, "rates": one.rates} for one in tried]
        stages.append({"what": what, "tried": rows, "chosen": chosen, "why": why})

    pairs = fillings(usable_cores())
    settle("workers and threads", [{"workers": workers, "threads": threads} for workers, threads in pairs])
    settle("loader processes", [{"num_workers": count} for count in dict.fromkeys(loaders)])
    bucket = _BUCKET_OPTIONS.get(strategy)
    if bucket is not None and options.get(bucket) is None and chosen["workers"] > 1:
        settle("bucket size", [{bucket: size} for size in BUCKETS_MB])
    command = f"unisono train {recipe} {spell(chosen)}" + (f" --strategy {strategy}" if strategy != "exact" else "")
    return {
        "recipe": recipe, "load": os.getloadavg()[0], "stages": stages, "proposal": chosen, "command": command
    }  # fmt: skip


def fillings(cores: int) -> list[tuple[int, int]]:
    """Return (workers, threads) worth trying on so many cores: one of each, and what fills them in powers of two.

    Example:
        >>> fillings(4)
        [(1, 1), (1, 4), (2, 2), (4, 1)]
    """
    powers = {1 << power for power in range(cores.bit_length()) if 1 << power <= cores}
    return sorted({(1, 1), *((workers, cores // workers) for workers in {*powers, cores})})


def _try_all(
    recipe: str,
    settings: Sequence[dict[str, Any]],
    given: dict[str, Any],
    launch: Mapping[str, Any],
    how: tuple[int, int, int],
    tell: Tell,
) -> list[Candidate]:
    repeat, steps, warmup = how
    ready = []
    for setting in settings:
        options = {**given, **{name: value for name, value in setting.items() if name != "workers"}}
        try:
            ready.append((setting, starter(recipe, (), [setting["workers"]], options, steps=steps, **launch)))
        except ConfigError:
            if setting["workers"] == 1:
                raise
            tell(f"left out: {spell(setting)}, more workers than replicas")
    rates: list[list[float]] = [[] for _ in ready]
    with scratch_directory("tune") as scratch:
        for turn, place, (setting, start) in turns(ready, repeat):
            tell(f"run {turn + 1} of {repeat}: {spell(setting)} ...")
            trial, _ = try_once(start, setting["workers"], turn, warmup, Path(scratch) / f"{turn}-{place}")
            rates[place].append(trial.batch_size / trial.step_s)
    return [
        Candidate(
            setting=setting, rates=rate,
            processes=setting["workers"] * (setting.get("threads", 1) + setting.get("num_workers", 0)),
        )
        for (setting, _), rate in zip(ready, rates, strict=True)
    ]  # fmt: skip
