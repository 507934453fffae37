"""``unisono bench links``: what slow links between hosts cost, and what would help."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.completion import complete_recipe
from unisono.cli.options.fields import field_options, recipe_options
from unisono.cli.options.settings import number, to_json
from unisono.cli.outcome import nothing_kept, perform
from unisono.launchers.scratch import scratch_directory
from unisono.nodes.plan import NodesOptions
from unisono.options.fields import taken
from unisono.options.quantities import RUNS, STEPS, WORKERS

if TYPE_CHECKING:
    from unisono.nodes.plan import NodesPlan


@click.command(short_help="Measure what slow links cost; propose compression or local SGD.")
@click.argument("recipe", metavar="RECIPE", shell_complete=complete_recipe)
@click.option("-n", "--workers", type=number(WORKERS), metavar="N",
              help="Processes on each host.  [default: 1; without --nnodes, 2]")  # fmt: skip
@click.option("--ways", metavar="NAME,...", help="Of exact, ddp, bf16, powersgd, local_sgd.  [default: all]")
@click.option("-r", "--repeat", type=number(RUNS), default=2, show_default=True, metavar="R",
              help="Runs of each way.")  # fmt: skip
@click.option(
    "--steps", type=number(replace(STEPS, low=2)), default=40, show_default=True, metavar="K", help="Of each run."
)
@recipe_options("batch_size", "model", "data")
@field_options(NodesOptions)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on standard output.")
def links(
    recipe: str, workers: int | None, ways: str | None, repeat: int, steps: int, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Train a few steps of RECIPE on these hosts in each way that slow links invite, and propose one.

    The exact step; DDP; DDP with gradients in bfloat16, or compressed by PowerSGD; local SGD, which talks every eight
    steps. All but exact change the result, so they are proposed only where they are clearly faster, and nothing is
    changed. Start the same command on all hosts; each run meets at a port of its own, counted up from the endpoint's.

    Exit code: 0 when all was measured; 2 for wrong settings; the code of the worker that failed first.
    """

    def act() -> None:
        _links(recipe, workers, ways, (repeat, steps), as_json, given)

    sys.exit(perform("bench links", act, nothing_kept("the measurement")))


def _links(
    recipe: str, workers: int | None, ways: str | None, how: tuple[int, int], as_json: bool,
    given: dict[str, Any],
) -> None:  # fmt: skip
    from unisono.scaling.slow_links import WAYS, command, propose

    names = parse_ways(ways)
    rendezvous = NodesOptions(**taken(NodesOptions, given)).plan()
    count = workers or (1 if rendezvous else 2)
    rates: dict[str, list[float]] = {name: [] for name in names}
    with scratch_directory("links") as scratch:
        for number in range(how[0] * len(names)):
            # Turn by turn, forwards and backwards: what changes on the network changes for all.
            turn, place = divmod(number, len(names))
            name = names[place if turn % 2 == 0 else -1 - place]
            click.echo(f"run {turn + 1} of {how[0]}: {name} ...", err=True)
            setting = {**given, **WAYS[name].setting}
            rates[name].append(_rate(recipe, count, setting, how[1], rendezvous, number, Path(scratch) / str(number)))
    chosen, why = propose(rates)
    told = {"recipe": recipe, "rates": rates, "proposal": chosen, "why": why, "command": command(recipe, chosen)}
    if as_json:
        click.echo(to_json(told))
        return
    for line in table(rates, chosen):
        click.echo(line)
    click.echo(f"{chosen}: {why}")
    click.echo(f"proposed: {told['command']}")


def _rate(
    recipe: str, workers: int, setting: dict[str, Any], steps: int, nodes: "NodesPlan | None", number: int, out: Path
) -> float:
    from unisono.experiments.job import plan, run_job

    if nodes is not None:
        # The last run's keeper may still be there.
        nodes = replace(nodes, port=nodes.port + number)
    job = plan(recipe, str(workers), {"threads": 1, **setting}, None, nodes)
    result = run_job(
        replace(job, options=replace(job.options, out=str(out))),
        output="quiet",
        env={"UNISONO_LAST_STEP": str(steps)},
    )
    return float(result["samples_per_s"])


def parse_ways(text: str | None) -> list[str]:
    """Return names of ways, ``exact`` among them, each once; None means all.

    Raises:
        ConfigError: A name that is not known.
    """
    from unisono.errors import ConfigError
    from unisono.scaling.slow_links import WAYS
    from unisono.system.hints import nearest

    names = list(WAYS) if text is None else [part.strip() for part in text.split(",")]
    for name in names:
        if name not in WAYS:
            raise ConfigError(f"expected --ways out of {', '.join(WAYS)}, got {name!r}.{nearest(name, WAYS)}")
    return list(dict.fromkeys(["exact", *names]))


def table(rates: Mapping[str, Sequence[float]], chosen: str) -> list[str]:
    """Return the ways and how fast they were, as lines."""
    import statistics

    from unisono.scaling.choice import spell
    from unisono.scaling.slow_links import WAYS

    return [
        f" {'*' if name == chosen else ' '} {statistics.median(found):>9,.0f} samples/s "
        f"({min(found):,.0f}-{max(found):,.0f})  {name:<10} {spell(dict(WAYS[name].setting))}".rstrip()
        for name, found in rates.items()
    ]
