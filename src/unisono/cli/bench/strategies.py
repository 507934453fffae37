"""``unisono bench strategies``: the same job with every strategy, side by side."""

import sys
from pathlib import Path
from typing import Any

import click

from unisono.cli.completion import complete_recipe
from unisono.cli.options.recipe import recipe_options
from unisono.cli.options.settings import PATH, number, to_json
from unisono.cli.outcome import nothing_kept, perform
from unisono.experiments.job import take_strategy
from unisono.experiments.trials import check_picture
from unisono.launchers.scratch import scratch_directory
from unisono.options.quantities import WORKERS
from unisono.strategies.catalog import CATALOG

DEFAULT = ",".join(CATALOG)


@click.command(short_help="Train a recipe with every strategy and compare.")
@click.argument("recipe", metavar="RECIPE", shell_complete=complete_recipe)
@click.option(
    "-n", "--workers", type=number(WORKERS), default=2, show_default=True, metavar="N",
    help="Processes that compute; servers come on top. dp, balanced_dp: one process of N devices; pipeline: N stages.",
)  # fmt: skip
@click.option("--strategies", default=DEFAULT, metavar="NAME,...", help="Which ones.  [default: all]")
@recipe_options("epochs", "batch_size", "limit", "model", "data")
@click.option("--picture", "--png", "picture", type=PATH, metavar="FILE.svg", help="Draw a picture too, as SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on standard output.")
def strategies(
    recipe: str, workers: int, strategies: str, picture: str | None, as_json: bool, **given: Any
) -> None:  # fmt: skip
    """Train RECIPE once with each strategy: samples a second, memory, bytes sent, accuracy after equal samples.

    Seconds are those spent in steps, start and evaluation left out. Memory is the peak of the fullest process, torch
    included. Bytes are what all processes together hand to others in a step; for ddp and fsdp torch's own part is
    counted by its algorithm.

    Exit code: 0 when all have been trained; 2 for wrong settings; the code of the worker that failed first; 130 after
    Ctrl-C.
    """

    def act() -> None:
        from unisono.recipes.catalog import find

        check_picture(picture)
        find(recipe)
        names = [name.strip() for name in strategies.split(",")]
        for name in names:
            take_strategy({"strategy": name})
        rows = [_row(recipe, workers, name, given) for name in names]
        if picture is not None:
            from unisono.report.bench_section import strategies_section
            from unisono.report.picture import draw_section

            draw_section(strategies_section(rows, f"{recipe}: {workers} workers"), picture)
        if as_json:
            click.echo(to_json(rows))
            return
        for line in table(rows):
            click.echo(line)

    sys.exit(perform("bench", act, nothing_kept("the measurement")))


def _row(recipe: str, workers: int, name: str, given: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import replace

    from unisono.experiments.job import plan, run_job

    chosen: dict[str, Any] = {**given, "strategy": name}
    options = take_strategy(dict(chosen))
    if options.most_ranks == 1:
        chosen["devices"], count = max(2, workers), 1
    else:
        if hasattr(options, "stages") and workers > 1:
            chosen["stages"] = workers  # one pipeline over all of them
        count = workers + (options.servers if hasattr(options, "servers") else 0)
    click.echo(f"training {recipe} with {name} on {count} processes ...", err=True)
    with scratch_directory("bench") as scratch:
        job = plan(recipe, str(count), {"threads": 1, **chosen})
        result = run_job(replace(job, options=replace(job.options, out=str(Path(scratch) / "run"))), output="quiet")
    return {
        "strategy": name,
        "processes": count,
        "samples_per_s": result["samples_per_s"],
        "peak_memory_bytes": max(result["peak_memory_bytes"]),
        "bytes_per_step": sum(result["bytes_sent_per_step"]),
        "steps": result["steps"],
        "metrics": result["metrics"],
        "fingerprint": result["fingerprint"],
        **{key: result[key] for key in ("idle_share", "idle_share_by_formula") if key in result},
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows as lines of at most 80 columns."""
    lines = [f"{'strategy':<15} {'procs':>5} {'samples/s':>10} {'peak MB':>8} {'KB/step':>9} {'accuracy':>9}  print"]
    for row in rows:
        accuracy = row["metrics"].get("test_accuracy")
        lines.append(
            f"{row['strategy']:<15} {row['processes']:>5} {row['samples_per_s']:>10,.0f} "
            f"{row['peak_memory_bytes'] / 2**20:>8,.0f} {row['bytes_per_step'] / 1024:>9,.0f} "
            f"{'' if accuracy is None else f'{accuracy:.4f}':>9}  {row['fingerprint'][:8]}"
        )
    lines += [
        f"{row['strategy']}: {row['idle_share']:.0%} of its processes' time idle in steps, "
        f"{row['idle_share_by_formula']:.0%} by the formula"
        for row in rows
        if "idle_share" in row
    ]
    return lines
