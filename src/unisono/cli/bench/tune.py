"""``unisono bench tune``: which workers, threads, loader processes and bucket size are fastest on this machine."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.completion import complete_recipe
from unisono.cli.options.fields import recipe_options, strategy_options
from unisono.cli.options.settings import number, to_json
from unisono.cli.outcome import nothing_kept, perform
from unisono.launchers.scratch import scratch_directory
from unisono.options.quantities import LOADERS, REPLICAS, RUNS, STEPS

if TYPE_CHECKING:
    from unisono.scaling.choice import Candidate

BUCKETS_MB = (1.0, 4.0, 25.0)
_LOADERS = replace(LOADERS, high=64)
_BUCKET_OPTIONS = {"ddp": "bucket_cap_mb", "allreduce": "bucket_mb"}


@click.command(short_help="Propose workers, threads, loader processes and bucket size.")
@click.argument("recipe", metavar="RECIPE", shell_complete=complete_recipe)
@click.option("-r", "--repeat", type=number(RUNS), default=2, show_default=True, metavar="R",
              help="Runs of each setting.")  # fmt: skip
@click.option(
    "--steps", type=number(replace(STEPS, low=4)), default=40, show_default=True, metavar="K", help="Of each run."
)
@click.option("--warmup", type=number(replace(STEPS, low=0)), default=8, show_default=True, metavar="K",
              help="First steps of each run that do not count.")  # fmt: skip
@click.option("--loaders", default="0,1,2", show_default=True, metavar="N,N,...", help="Loader processes to try.")
@click.option("--replicas", type=number(REPLICAS), metavar="V", help="Logical workers.")
@recipe_options("batch_size", "model", "data")
@strategy_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on standard output.")
def tune(recipe: str, repeat: int, steps: int, warmup: int, loaders: str, as_json: bool, **given: Any) -> None:
    """Measure settings of RECIPE, and propose the fastest; nothing is changed.

    First workers and threads that fill the cores, then loader processes, then the size of buckets for strategies that
    have some (exact has none: how its reductions are cut is measured once per host). Runs take turns; a difference
    within the scatter is called so. Threads are part of the result: another number gives other bits.

    Exit code: 0 when all was measured; 2 for wrong settings; the code of the worker that failed first.
    """
    how = {"repeat": repeat, "steps": steps, "warmup": warmup}
    done = nothing_kept("the measurement")
    sys.exit(perform("bench tune", lambda: _tune(recipe, how, loaders, given, as_json), done))


def _tune(recipe: str, how: dict[str, int], loaders: str, given: dict[str, Any], as_json: bool) -> None:
    from unisono.errors import ConfigError
    from unisono.launchers.spec import usable_cores
    from unisono.scaling.choice import choose, spell

    if how["steps"] - how["warmup"] < 2:
        raise ConfigError(f"expected --steps of --warmup + 2 at least, got {how['steps']} and {how['warmup']}.")
    counts = [_LOADERS.read("--loaders as numbers such as 0,1,2, each", part) for part in loaders.split(",")]
    name = given["strategy"]
    stages: list[dict[str, Any]] = []
    chosen: dict[str, Any] = {}
    settings: list[dict[str, Any]]
    pairs: list[dict[str, Any]] = [
        {"workers": workers, "threads": threads} for workers, threads in fillings(usable_cores())
    ]
    for what in ("workers and threads", "loader processes", "bucket size"):
        if what == "workers and threads":
            settings = pairs
        elif what == "loader processes":
            settings = [{**chosen, "num_workers": count} for count in dict.fromkeys(counts)]
        else:
            option = _BUCKET_OPTIONS.get(name)
            if option is None or given[option] is not None or chosen["workers"] == 1:
                continue
            settings = [{**chosen, option: size} for size in BUCKETS_MB]
        tried = _try_all(recipe, settings, given, how)
        best, why = choose(tried)
        chosen = best.setting
        rows = [{"setting": one.setting, "samples_per_s": one.median, "rates": one.rates} for one in tried]
        stages.append({"what": what, "tried": rows, "chosen": chosen, "why": why})
    command = f"unisono train {recipe} {spell(chosen)}" + (f" --strategy {name}" if name != "exact" else "")
    if as_json:
        click.echo(to_json({"recipe": recipe, "load": os.getloadavg()[0], "stages": stages, "proposal": chosen,
                               "command": command}))  # fmt: skip
        return
    for line in table(stages):
        click.echo(line)
    click.echo(f"proposed: {command}")


def fillings(cores: int) -> list[tuple[int, int]]:
    """Return (workers, threads) worth trying on so many cores: one of each, and what fills them in powers of two.

    Example:
        >>> fillings(4)
        [(1, 1), (1, 4), (2, 2), (4, 1)]
    """
    powers = {1 << power for power in range(cores.bit_length()) if 1 << power <= cores}
    return sorted({(1, 1), *((workers, cores // workers) for workers in {*powers, cores})})


def _try_all(
    recipe: str, settings: Sequence[dict[str, Any]], given: dict[str, Any], how: dict[str, int]
) -> "list[Candidate]":
    from unisono.cli.bench.scaling import try_once
    from unisono.errors import ConfigError
    from unisono.experiments.job import plan, run_job
    from unisono.scaling.choice import Candidate, spell

    jobs = []
    for setting in settings:
        options = {**given, **{name: value for name, value in setting.items() if name != "workers"}}
        try:
            jobs.append((setting, plan(recipe, str(setting["workers"]), options)))
        except ConfigError:
            if setting["workers"] == 1:
                raise
            click.echo(f"left out: {spell(setting)}, more workers than replicas", err=True)
    rates: list[list[float]] = [[] for _ in jobs]
    with scratch_directory("tune") as scratch:
        for repeat in range(how["repeat"]):
            for place, (setting, job) in list(enumerate(jobs))[:: 1 if repeat % 2 == 0 else -1]:
                click.echo(f"run {repeat + 1} of {how['repeat']}: {spell(setting)} ...", err=True)

                def start(_: int, out: Path, job: Any = job) -> None:
                    made = replace(job, options=replace(job.options, out=str(out)))
                    run_job(made, output="quiet", env={"UNISONO_LAST_STEP": str(how["steps"])})

                out = Path(scratch) / f"{repeat}-{place}"
                trial = try_once(start, setting["workers"], repeat, how["warmup"], out)
                rates[place].append(trial.batch_size / trial.step_s)
    found = []
    for (setting, _), rate in zip(jobs, rates, strict=True):
        busy = setting["workers"] * (setting.get("threads", 1) + setting.get("num_workers", 0))
        found.append(Candidate(setting=setting, processes=busy, rates=rate))
    return found


def table(stages: Sequence[dict[str, Any]]) -> list[str]:
    """Return what was measured and proposed as lines."""
    from unisono.scaling.choice import spell

    lines = []
    for stage in stages:
        lines.append(stage["what"])
        for row in stage["tried"]:
            low, high = min(row["rates"]), max(row["rates"])
            mark = "*" if row["setting"] == stage["chosen"] else " "
            lines.append(
                f" {mark} {row['samples_per_s']:>9,.0f} samples/s ({low:,.0f}-{high:,.0f})  {spell(row['setting'])}"
            )
        lines += [f"   {stage['why']}", ""]
    return lines
