"""``unisono bench tune``: which workers, threads, loader processes and bucket size are fastest on this machine."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from unisono.cli.bench.links import spell_rates
from unisono.cli.completion import recipe_argument
from unisono.cli.options import fields
from unisono.cli.options.job import PLACES, places_of
from unisono.cli.options.lists import parse_loaders
from unisono.cli.output.outcome import nothing_kept, tell, verb
from unisono.cli.output.tables import answer, table
from unisono.options.quantities import REPLICAS
from unisono.scaling.choice import spell


@click.command(cls=fields.ExplainedCommand, short_help="Propose workers, threads, loader processes and bucket size.")
@recipe_argument
@fields.repeat_option(2, "Runs of each setting.")
@fields.steps_option(40, least=4)
@fields.warmup_option(8)
@fields.single("loaders", "Loader processes to try.", default="0,1,2", word="N,N,...", basic=True)
@fields.single("replicas", "Logical workers.", of=REPLICAS, word="V", basic=True)
@fields.recipe_options("batch_size", "model", "data")
@fields.strategy_options
@PLACES
@fields.result_options
@verb("bench tune", nothing_kept("the measurement"))
def tune(recipe: str, loaders: str, as_json: bool, **given: Any) -> None:
    """Measure settings of RECIPE, and propose the fastest; nothing is changed.

    First workers and threads that fill the cores, then loader processes, then the size of buckets for strategies that
    have some (exact has none: how its reductions are cut is measured once per host). Runs take turns; a difference
    within the scatter is called so. Threads are part of the result: another number gives other bits.

    Exit code: 0 when all was measured; 2 for wrong settings; the code of the worker that failed first.
    """
    from unisono.experiments import tune as experiment

    launch = places_of(given)
    found = experiment.tune(recipe, loaders=parse_loaders(loaders), launch=launch, tell=tell, **given)
    answer(found, as_json, lambda: [*stage_lines(found["stages"]), f"proposed: {found['command']}"])


def stage_lines(stages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what was measured in each stage, with what was chosen marked, and why."""
    for stage in stages:
        rows = [
            ("*" if row["setting"] == stage["chosen"] else "", *spell_rates(row["rates"]), spell(row["setting"]))
            for row in stage["tried"]
        ]
        yield from (f"{stage['what']}:", *table(("", "samples/s", "all runs", "setting"), rows, left=("setting",)))
        yield from (stage["why"], "")
