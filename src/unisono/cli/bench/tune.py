"""``unisono bench tune``: which workers, threads, loader processes and bucket size are fastest on this machine."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import click

from unisono.cli.bench.links import spell_rates
from unisono.cli.completion import complete_recipe
from unisono.cli.options.lists import parse_loaders
from unisono.cli.options.recipe import recipe_options
from unisono.cli.options.settings import number
from unisono.cli.options.strategy import strategy_options
from unisono.cli.outcome import nothing_kept, perform, tell
from unisono.cli.tables import answer, table
from unisono.options.quantities import REPLICAS, RUNS, STEPS
from unisono.scaling.choice import spell


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
def tune(recipe: str, loaders: str, as_json: bool, **given: Any) -> None:
    """Measure settings of RECIPE, and propose the fastest; nothing is changed.

    First workers and threads that fill the cores, then loader processes, then the size of buckets for strategies that
    have some (exact has none: how its reductions are cut is measured once per host). Runs take turns; a difference
    within the scatter is called so. Threads are part of the result: another number gives other bits.

    Exit code: 0 when all was measured; 2 for wrong settings; the code of the worker that failed first.
    """

    def act() -> None:
        from unisono.experiments import tune as experiment

        found = experiment.tune(recipe, loaders=parse_loaders(loaders), tell=tell, **given)
        answer(found, as_json, lambda: [*stage_lines(found["stages"]), f"proposed: {found['command']}"])

    sys.exit(perform("bench tune", act, nothing_kept("the measurement")))


def stage_lines(stages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what was measured in each stage, with what was chosen marked, and why."""
    for stage in stages:
        rows = [
            ("*" if row["setting"] == stage["chosen"] else "", *spell_rates(row["rates"]), spell(row["setting"]))
            for row in stage["tried"]
        ]
        yield from (f"{stage['what']}:", *table(("", "samples/s", "all runs", "setting"), rows, left=("setting",)))
        yield from (stage["why"], "")
