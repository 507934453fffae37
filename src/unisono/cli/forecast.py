"""``unisono forecast``: what training would take on more ranks than there are."""

from pathlib import Path
from typing import Any

import click

from unisono.cli.completion import RecipeName
from unisono.cli.options.fields import field_options, out_option, picture_option, result_options, single
from unisono.cli.options.lists import parse_counts
from unisono.cli.output.outcome import nothing_kept, tell, verb
from unisono.cli.output.tables import answer, section_lines
from unisono.scaling.options import ForecastOptions


@click.command(short_help="Forecast steps, efficiency and the best algorithm on 1 to 65,536 ranks.")
@click.argument("recipe", metavar="[RECIPE]", required=False, type=RecipeName())
@single(
    "workers", "Numbers of ranks; A..B: powers of two.", short="-n", old=("--ranks",), word="N,N|A..B",
    usual="1..1024; of a RECIPE here, 1..8",
)  # fmt: skip
@field_options(ForecastOptions)
@picture_option
@out_option("Keep the forecast, for unisono report.")
@result_options
@verb("forecast", nothing_kept("the measurement"))
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
    from unisono.experiments import forecast as experiment
    from unisono.experiments.trials import check_picture
    from unisono.report.forecast_section import KIND, forecast_section
    from unisono.system.files import check_place, to_json, write_whole

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
