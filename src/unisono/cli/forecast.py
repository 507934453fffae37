"""``unisono forecast``: what training would take on more ranks than there are."""

import sys
from pathlib import Path
from typing import Any

import click

from unisono.cli.completion import complete_recipe
from unisono.cli.options.fields import json_option, out_option, picture_option, single
from unisono.cli.options.lists import parse_counts
from unisono.cli.options.settings import PATH, number, to_json
from unisono.cli.outcome import nothing_kept, perform, tell
from unisono.cli.tables import answer, section_lines
from unisono.options.quantities import BATCH, ELEMENT_BYTES, FRACTION, JITTER, PARAMETERS, RANKS, RATE, REPLICAS, STEPS


@click.command(short_help="Forecast steps, efficiency and the best algorithm on 1 to 65,536 ranks.")
@click.argument("recipe", metavar="[RECIPE]", required=False, shell_complete=complete_recipe)
@single(
    "workers", "Numbers of ranks; A..B: powers of two.", short="-n", old=("--ranks",), word="N,N|A..B",
    usual="1..1024; of a RECIPE here, 1..8",
)  # fmt: skip
@click.option(
    "--parameters", type=number(PARAMETERS), metavar="P", help="Of the model; 4 bytes each unless --parameter-bytes."
)
@click.option(
    "--parameter-bytes",
    type=number(ELEMENT_BYTES),
    default=4,
    show_default=True,
    metavar="B",
    help="Of a gradient's element.",
)
@click.option("--sample-time", metavar="TIME", help="Forward and backward of a sample on one rank: 12ms.")
@click.option(
    "--batch-size", type=number(BATCH), metavar="B", help="Samples per step over all ranks; with --weak, of each rank."
)
@click.option(
    "--replicas", type=number(REPLICAS), metavar="V", help="Micro-batches of a step.  [default: one for each rank]"
)
@click.option("--update-time", metavar="TIME", help="Optimizer.  [default: 0]")
@click.option(
    "--jitter", type=number(JITTER), metavar="X", help="Spread of a rank's compute time over its mean.  [default: 0]"
)
@click.option("--overlap", type=number(FRACTION), metavar="X",
              help="Part of the backward pass beside which communication goes on.  [default: 0]")  # fmt: skip
@click.option("--data-rate", type=number(RATE), metavar="X", help="Samples a second that storage gives to all ranks.")
@click.option("--servers", type=number(RANKS), metavar="K", help="Parameter servers.  [default: 1]")
@click.option(
    "--steps", type=number(STEPS), metavar="K", help="Steps of the whole run: adds its time, launch and failures."
)
@click.option("--launch-time", metavar="TIME", help="Until the first step.  [default: 0]")
@click.option("--launch-rank-time", metavar="TIME", help="More of it for each rank.  [default: 0]")
@click.option("--weak", is_flag=True, help="The batch grows with the ranks.")
@click.option("--node-size", type=number(RANKS), metavar="L", help="Ranks of a node.  [default: 8]")
@click.option("--nics", type=number(RANKS), metavar="K", help="Network cards of a node.  [default: one for each rank]")
@click.option("--inside", metavar="RATE", help="Of a rank inside its node.  [default: 450GB/s]")
@click.option("--inside-latency", metavar="TIME", help="[default: 3us]")
@click.option(
    "--between", metavar="RATE", help="Of a network card: 400Gb/s (bits) or 50GB/s (bytes).  [default: 400Gb/s]"
)
@click.option("--between-latency", metavar="TIME", help="[default: 5us]")
@click.option("--overhead", metavar="TIME", help="Of a port for each message.  [default: 1us]")
@click.option("--add-rate", metavar="RATE", help="Gradients added on a rank.  [default: 1000GB/s]")
@click.option("--mtbf", metavar="TIME", help="Mean time between failures of one rank: 50000h.")
@click.option("--checkpoint-time", metavar="TIME", help="Training time that a checkpoint costs.  [default: 10s]")
@click.option("--restart-time", metavar="TIME", help="From a failure to the next step.  [default: 60s]")
@click.option("--data", type=PATH, metavar="PATH", help="RECIPE's data.")
@picture_option
@out_option("Keep the forecast, for unisono report.")
@json_option
def forecast(
    recipe: str | None, workers: str | None, picture: str | None, out: str | None, as_json: bool, **given: Any
) -> None:
    """Forecast step time, efficiency and the best algorithm, from a cost model of machine and job.

    With RECIPE the model is calibrated by a short measurement on this machine (about half a minute); what is given
    on the command line takes its place. Without, machine and job come from the command line:

      unisono forecast --parameters 7e9 --parameter-bytes 2 --sample-time 0.9s
        --batch-size 1024 --node-size 8 --between 400Gb/s --mtbf 50000h

    Ring, tree, owner-computes, halving-doubling, hierarchical, parameter servers that wait or do not. docs/scaling.md
    says what the model knows, and what it does not.

    Exit code: 0 when it was forecast; 2 for wrong settings; with RECIPE, the code of a worker that failed.
    """

    def act() -> None:
        from unisono.experiments import forecast as experiment
        from unisono.experiments.trials import check_picture
        from unisono.report.forecast_section import KIND, forecast_section
        from unisono.system.files import check_place, write_whole

        check_picture(picture)
        counts = None if workers is None else parse_counts(workers)
        if out is not None:
            check_place(Path(out), (KIND,))
        told = experiment.forecast(recipe, ranks=counts, tell=tell, **given)
        if picture is not None:
            from unisono.report.picture import draw_section

            draw_section(forecast_section(told), picture)
        if out is not None:
            write_whole(Path(out), (to_json(told) + "\n").encode())
        answer(told, as_json, lambda: section_lines(forecast_section(told)))

    sys.exit(perform("forecast", act, nothing_kept("the measurement")))
