"""What training would take on more ranks than there are: from a short measurement here, or from numbers alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from unisono.errors import ConfigError
from unisono.experiments.calibrate import calibrate
from unisono.experiments.trials import Tell, flag_of, silent
from unisono.options.fields import options_of
from unisono.report.forecast_section import KIND, VERSION
from unisono.scaling import forecast as model
from unisono.scaling.failures import Reliability
from unisono.scaling.machine import Link, Machine, parse_rate, parse_seconds
from unisono.scaling.options import BANDWIDTH, TIME, ForecastOptions

_JOB = {name: name for name in ("replicas", "jitter", "overlap", "servers", "steps", "batch_size")}
_JOB |= {"data_rate": "data_samples_per_s", "sample_time": "sample_s", "update_time": "update_s"}
_JOB |= {"launch_time": "launch_s", "launch_rank_time": "launch_rank_s"}


def forecast(
    recipe: str | None = None, *, ranks: Sequence[int] | None = None, tell: Tell = silent, **options: Any
) -> dict[str, Any]:
    """Forecast step time, efficiency and the best algorithm, from a cost model of machine and job.

    Args:
        recipe: Is measured on this machine for half a minute; None: machine and job come from the options alone.
        ranks: Numbers of ranks, ascending. None: powers of two up to 1024; of a recipe on this machine, up to 8.
        tell: Takes a line about what is going on.
        **options: Those of ``unisono forecast``: `ForecastOptions`; times and rates as texts (``12ms``, ``400Gb/s``),
            or seconds and bytes a second. What is given takes the place of what was measured.

    Returns:
        What ``unisono forecast --json`` prints: notes, job, machine, reliability, and for each number of ranks all
        strategies; ``run_s`` is the text ``never`` for a run without end.
    """
    asked = {name: _read(name, value) for name, value in options.items() if value is not None}
    reliability = _reliability(asked)
    job, machine, notes = _settle(recipe, asked, tell)
    if ranks is None:
        ranks = [1 << power for power in range(4 if recipe is not None and "node_size" not in asked else 11)]
    found = [asdict(one) for one in model.forecast(job, machine, ranks, reliability)]
    for row in found:
        if row["run_s"] == math.inf:  # which JSON does not have
            row["run_s"] = "never"
    return {
        "kind": KIND, "version": VERSION, "notes": notes, "job": asdict(job), "machine": asdict(machine),
        "reliability": None if reliability is None else asdict(reliability),
        "forecasts": found, "simulated": [],  # which readers of this version look for
    }  # fmt: skip


def _read(name: str, value: Any) -> Any:
    known = options_of(ForecastOptions)
    if name not in known:
        raise ConfigError(f"expected options of unisono forecast: {', '.join(known)}; got {name!r}.")
    read = {TIME: parse_seconds, BANDWIDTH: parse_rate}.get(known[name].word)
    return read(value) if read is not None and isinstance(value, str) else value


def _reliability(asked: Mapping[str, Any]) -> Reliability | None:
    if "mtbf" in asked:
        saving, restart = asked.get("checkpoint_time", 10.0), asked.get("restart_time", 60.0)
        return Reliability(rank_mtbf_s=asked["mtbf"], checkpoint_s=saving, restart_s=restart)
    if "checkpoint_time" in asked or "restart_time" in asked:
        raise ConfigError("--checkpoint-time and --restart-time are for failures. Hint: give --mtbf too.")
    return None


def _settle(recipe: str | None, asked: Mapping[str, Any], tell: Tell) -> tuple[model.Workload, Machine, list[str]]:
    """Return job and machine from measurement and options, and notes on where they come from."""
    plain = {name: asked[name] for name in ("node_size", "nics") if name in asked}
    if recipe is None:
        missing = [flag_of(name) for name in ("parameters", "sample_time", "batch_size") if name not in asked]
        if missing:
            raise ConfigError(
                f"expected a RECIPE to measure, or {', '.join(missing)}. Hint: unisono forecast digits; or give "
                "--parameters 7e9 --sample-time 0.9s --batch-size 1024."
            )
        size = asked.get("node_size", 8)
        machine = Machine(
            inside=Link(latency_s=3e-6, s_per_byte=1 / 450e9, overhead_s=1e-6),
            between=Link(latency_s=5e-6, s_per_byte=1 / 50e9, overhead_s=1e-6),
            node_size=size, nics=max(1, size), add_s_per_byte=1e-12,
        )  # fmt: skip
        job = model.Workload(gradient_bytes=0.0, batch_size=asked["batch_size"], sample_s=asked["sample_time"])
        notes = ["from the command line; what was not given has its default"]
    else:
        chosen = {name: asked[name] for name in ("replicas", "batch_size", "data") if name in asked}
        job, machine, notes = calibrate(recipe, chosen, tell)
        if "node_size" in asked and machine.cores is not None:
            plain["cores"] = None  # another machine: its ranks have devices of their own
    for name in ("inside", "between"):
        given = {"latency_s": asked.get(f"{name}_latency"), "overhead_s": asked.get("overhead")}
        given["s_per_byte"] = 1 / asked[name] if name in asked else None
        plain[name] = replace(getattr(machine, name), **{key: one for key, one in given.items() if one is not None})
    if "add_rate" in asked:
        plain["add_s_per_byte"] = 1 / asked["add_rate"]
    numbers = {field: asked[name] for name, field in _JOB.items() if name in asked}
    if "parameters" in asked:
        numbers["gradient_bytes"] = asked["parameters"] * asked.get("parameter_bytes", 4)
    return replace(job, **numbers, weak=asked.get("weak", False)), replace(machine, **plain), notes
