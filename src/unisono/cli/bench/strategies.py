"""``unisono bench strategies``: the same job with every strategy, side by side."""

from typing import Any

import click

from unisono.cli.completion import recipe_argument
from unisono.cli.options.fields import picture_option, recipe_options, result_options, single
from unisono.cli.options.job import PLACES, places_of
from unisono.cli.output.outcome import nothing_kept, tell, verb
from unisono.cli.output.tables import answer, table
from unisono.options.quantities import WORKERS
from unisono.strategies.catalog import CATALOG


@click.command(short_help="Train a recipe with every strategy and compare.")
@recipe_argument
@single(
    "workers", "Processes that compute; servers come on top. dp, balanced_dp: one process of N devices; pipeline: N "
    "stages.", of=WORKERS, default=2, short="-n", word="N",
)  # fmt: skip
@single("strategies", "Which ones.", default=",".join(CATALOG), word="NAME,...", usual="all")
@recipe_options("epochs", "batch_size", "limit", "model", "data")
@PLACES
@picture_option
@result_options
@verb("bench strategies", nothing_kept("the measurement"))
def strategies(recipe: str, workers: int, strategies: str, picture: str | None, as_json: bool, **given: Any) -> None:
    """Train RECIPE once with each strategy: samples a second, memory, bytes sent, accuracy after equal samples.

    Seconds are those spent in steps, start and evaluation left out. Memory is the peak of the fullest process, torch
    included. Bytes are what all processes together hand to others in a step; for ddp and fsdp torch's own part is
    counted by its algorithm.

    Exit code: 0 when all have been trained; 2 for wrong settings; the code of the worker that failed first; 130 after
    Ctrl-C.
    """
    from unisono.experiments.strategies import compare_strategies
    from unisono.experiments.trials import check_picture

    check_picture(picture)
    names = [name.strip() for name in strategies.split(",")]
    launch = places_of(given)
    rows = compare_strategies(recipe, workers=workers, strategies=names, launch=launch, tell=tell, **given)
    if picture is not None:
        from unisono.report.bench_section import strategies_section
        from unisono.report.picture import draw_section

        draw_section(strategies_section(rows, f"{recipe}, {workers} workers"), picture)
    answer(rows, as_json, lambda: strategies_table(rows))


def strategies_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows as lines of at most 80 columns."""
    head = ("strategy", "procs", "samples/s", "peak MB", "KB/step", "accuracy", "print")
    cells = []
    for row in rows:
        accuracy = row["metrics"].get("test_accuracy")
        sizes = f"{row['peak_memory_bytes'] / 2**20:,.0f}", f"{row['bytes_per_step'] / 1024:,.0f}"
        score = None if accuracy is None else f"{accuracy:.4f}"
        rate = f"{row['samples_per_s']:,.0f}"
        cells.append((row["strategy"], row["processes"], rate, *sizes, score, row["fingerprint"][:8]))
    idle = [
        f"{row['strategy']}: {row['idle_share']:.0%} of its processes' time idle in steps, "
        f"{row['idle_share_by_formula']:.0%} by the formula"
        for row in rows
        if "idle_share" in row
    ]
    return [*table(head, cells, left=("strategy", "print")), *idle]
