"""``unisono verify``: run the same score with several numbers of workers and compare the bits."""

import shutil
import sys
from typing import Any

import click

from unisono.cli.completion import target_arguments
from unisono.cli.options.fields import ExplainedCommand, counts_option, result_options
from unisono.cli.options.job import HOST, config_option, launch_of, run_options
from unisono.cli.options.lists import parse_workers
from unisono.cli.output.outcome import complain, conclude, nothing_kept, tell, verb
from unisono.cli.output.tables import answer, table

_NOT = ("out", "max_restarts", "elastic")
"""Of a run's options: what has no meaning here, since nothing is kept, and a run that goes on proves nothing."""
_WIDTH = 92
"""Of the table, with whole fingerprints."""


@click.command(cls=ExplainedCommand, short_help="Prove that the number of workers does not change a bit.")
@target_arguments
@config_option("workers", *_NOT, *HOST)
@counts_option(None, "1,2; where the strategy's bits depend on the number, 2,2")
@run_options(without=_NOT, scripts_too=True)
@result_options
@verb("verify", nothing_kept("the runs so far"))
def verify(target: str, args: tuple[str, ...], workers: str | None, as_json: bool, **given: Any) -> int:
    """Run RECIPE or SCRIPT once for each number of workers and compare the fingerprints.

    Takes every option of `unisono train`, or its run file. A script's own ARGS stand after ``--``. Its run directory
    is replaced by a temporary one. Where the fingerprints differ, the first step at which the ledgers differ is named.
    With a strategy other than exact the number of workers is part of the result: then it is proved that a run repeats.

    Exit code: 0 only when all fingerprints are equal; 1 when they differ; 2 for wrong settings; 130 after Ctrl-C; else
    that of a failed worker.
    """
    from unisono.experiments import verify as experiment

    counts, launch = None if workers is None else parse_workers(workers), launch_of(given)
    verdict = experiment.verify(target, args, workers=counts, launch=launch, tell=tell, **given)
    answer({"equal": verdict.equal, "trials": verdict.trials}, as_json, lambda: _table(verdict.trials))
    for count, step, fields in verdict.parted:
        complain(f"{verdict.trials[0]['workers']} and {count} workers part at step {step} in: {', '.join(fields)}.")
    return conclude(verdict.equal, as_json)


def _table(trials: list[dict[str, Any]]) -> list[str]:
    """Return the table; on a terminal that would break the fingerprints' lines, with their first half."""
    room = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else _WIDTH
    digits = slice(None) if room >= _WIDTH else slice(32)
    rows = [(each["workers"], f"{each['seconds']:.1f}", each["steps"], each["fingerprint"][digits]) for each in trials]
    return table(list(trials[0]), rows, left=["fingerprint"])
