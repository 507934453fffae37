"""``unisono bench tune``: which workers, threads, loader processes and bucket size are fastest on this machine."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from unisono.cli.bench.links import spell_rates
from unisono.cli.completion import complete_recipe
from unisono.cli.options.fields import (
    ExplainedCommand,
    json_option,
    recipe_options,
    repeat_option,
    steps_option,
    strategy_options,
    warmup_option,
)
from unisono.cli.options.lists import parse_loaders
from unisono.cli.options.settings import number
from unisono.cli.outcome import nothing_kept, perform, tell
from unisono.cli.tables import answer, table
from unisono.options.quantities import REPLICAS
from unisono.scaling.choice import spell


@click.command(cls=ExplainedCommand, short_help="Propose workers, threads, loader processes and bucket size.")
@click.argument("recipe", metavar="RECIPE", shell_complete=complete_recipe)
@repeat_option(2, "Runs of each setting.")
@steps_option(40, least=4)
@warmup_option(8)
@click.option("--loaders", default="0,1,2", show_default=True, metavar="N,N,...", help="Loader processes to try.")
@click.option("--replicas", type=number(REPLICAS), metavar="V", help="Logical workers.")
@recipe_options("batch_size", "model", "data")
@strategy_options
@json_option
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
