"""``unisono bench links``: what slow links between hosts cost, and what would help."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import click

from unisono.cli.completion import recipe_argument
from unisono.cli.options.fields import (
    field_options,
    recipe_options,
    repeat_option,
    result_options,
    single,
    steps_option,
)
from unisono.cli.options.lists import parse_names
from unisono.cli.output.outcome import nothing_kept, tell, verb
from unisono.cli.output.tables import answer, table
from unisono.nodes.plan import NodesOptions
from unisono.options.fields import taken
from unisono.options.quantities import WORKERS
from unisono.scaling.choice import spell
from unisono.scaling.slow_links import WAYS


@click.command(short_help="Measure what slow links cost; propose compression or local SGD.")
@recipe_argument
@single("workers", "Processes on each host.", of=WORKERS, short="-n", word="N", usual="1; without --nnodes, 2")
@single("ways", "Of exact, exact_bf16, exact_int8, ddp, bf16, powersgd, local_sgd.", word="NAME,...", usual="all")
@repeat_option(2, "Runs of each way.")
@steps_option(40)
@recipe_options("batch_size", "model", "data")
@field_options(NodesOptions)
@result_options
@verb("bench links", nothing_kept("the measurement"))
def links(recipe: str, ways: str | None, as_json: bool, **given: Any) -> None:
    """Train a few steps of RECIPE on these hosts in each way that slow links invite, and propose one.

    The exact step; the same with rounded gradients; DDP; DDP with gradients in bfloat16, or compressed by PowerSGD;
    local SGD, which talks every eight steps. All but exact change the result, so they are proposed only where they are
    clearly faster, and nothing is changed. Start the same command on all hosts; each run meets at a port of its own,
    counted up from the endpoint's.

    Exit code: 0 when all was measured; 2 for wrong settings; the code of the worker that failed first.
    """
    from unisono.experiments.links import compare_links

    names = list(WAYS) if ways is None else parse_names("--ways", ways, WAYS)
    nodes = NodesOptions(**taken(NodesOptions, given)).plan()
    found = compare_links(recipe, names, nodes=nodes, tell=tell, **given)
    chosen = found["proposal"]
    more = [f"{chosen}: {found['why']}", f"proposed: {found['command']}"]
    answer(found, as_json, lambda: [*ways_table(found["rates"], chosen), *more])


def ways_table(rates: Mapping[str, Sequence[float]], chosen: str) -> list[str]:
    """Return the ways and how fast they were, as lines; the proposed one is marked."""
    rows = [
        ("*" if name == chosen else "", *spell_rates(found), name, spell(dict(WAYS[name].setting)))
        for name, found in rates.items()
    ]
    return table(("", "samples/s", "all runs", "way", "options"), rows, left=("way", "options"))


def spell_rates(rates: Sequence[float]) -> tuple[str, str]:
    """Return the median, and the range from the slowest to the fastest run."""
    return f"{statistics.median(rates):,.0f}", f"{min(rates):,.0f}-{max(rates):,.0f}"
