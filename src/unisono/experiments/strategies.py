"""The same job with every strategy, side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unisono.experiments.job import plan, run_in, take_strategy
from unisono.experiments.trials import Tell, silent
from unisono.launchers.scratch import scratch_directory
from unisono.recipes.catalog import find
from unisono.strategies.catalog import CATALOG


def compare_strategies(
    recipe: str,
    *,
    workers: int = 2,
    strategies: Sequence[str] = tuple(CATALOG),
    launch: Mapping[str, Any] | None = None,
    tell: Tell = silent,
    **options: Any,
) -> list[dict[str, Any]]:
    """Train a recipe once with each strategy. `launch`: more of the `LaunchSpec`.

    Returns:
        For each strategy, what ``unisono bench strategies --json`` prints of it: processes, replicas, samples a second
        in steps, the peak memory of the fullest process, the bytes that all processes together send in a step, metrics,
        fingerprint.
    """
    find(recipe)
    for name in strategies:
        take_strategy({"strategy": name})
    return [_row(recipe, workers, name, options, launch or {}, tell) for name in strategies]


def _row(
    recipe: str, workers: int, name: str, given: dict[str, Any], launch: Mapping[str, Any], tell: Tell
) -> dict[str, Any]:
    chosen: dict[str, Any] = {"threads": 1, **given, "strategy": name}
    options = take_strategy(dict(chosen))
    if options.most_ranks == 1:
        chosen["devices"], count = max(2, workers), 1
    else:
        if hasattr(options, "stages") and workers > 1:
            chosen["stages"] = workers  # one pipeline over all of them
        count = workers + (options.servers if hasattr(options, "servers") else 0)
    tell(f"training {recipe} with {name} on {count} processes ...")
    with scratch_directory("bench") as scratch:
        job = plan(recipe, str(count), chosen, launch.get("devices"))
        result = run_in(job, Path(scratch) / "run", **launch)
    return {
        "strategy": name, "processes": count, "replicas": job.options.replicas,
        "samples_per_s": result["samples_per_s_within"],
        "peak_memory_bytes": max(result["peak_memory_bytes"]), "bytes_per_step": sum(result["bytes_sent_per_step"]),
        **{key: result[key] for key in ("steps", "metrics", "fingerprint")},
        **{key: result[key] for key in ("idle_share", "idle_share_by_formula") if key in result},
    }  # fmt: skip
