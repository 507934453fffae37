"""``unisono verify``: run the same score with several numbers of workers and compare the bits."""

from typing import Any

import click

from unisono.cli.completion import target_arguments
from unisono.cli.options.fields import counts_option, json_option, recipe_options, single
from unisono.cli.options.lists import parse_workers
from unisono.cli.output.outcome import conclude, nothing_kept, tell, verb
from unisono.cli.output.tables import answer, table
from unisono.options.quantities import REPLICAS, THREADS


@click.command(short_help="Prove that the number of workers does not change a bit.")
@target_arguments
@counts_option
@single("replicas", "Logical workers.", of=REPLICAS, word="V",
        usual="the recipe's; for a script that leaves them open, the most workers")  # fmt: skip
@recipe_options("epochs", "batch_size", "seed", "model", "limit", "data", scripts_too=True)
@single("threads", "Threads per process.", of=THREADS, word="T")
@json_option
@verb("verify", nothing_kept("the runs so far"))
def verify(target: str, args: tuple[str, ...], workers: str, as_json: bool, **given: Any) -> int:
    """Run RECIPE or SCRIPT once for each number of workers and compare the fingerprints.

    A script's own ARGS stand after ``--``. Its run directory is replaced by a temporary one. Where the
    fingerprints differ, the first step at which the ledgers part is named.

    Exit code: 0 only when all fingerprints are equal; 1 when they differ; 2 for wrong settings; 130 after Ctrl-C; else
    that of a failed worker.
    """
    from unisono.experiments import verify as experiment

    verdict = experiment.verify(target, args, workers=parse_workers(workers), tell=tell, **given)
    answer({"equal": verdict.equal, "trials": verdict.trials}, as_json, lambda: _table(verdict.trials))
    for count, step, fields in verdict.parted:
        tell(f"{verdict.trials[0]['workers']} and {count} workers part at step {step} in: {', '.join(fields)}.")
    return conclude(verdict.equal)


def _table(trials: list[dict[str, Any]]) -> list[str]:
    rows = [{**trial, "seconds": f"{trial['seconds']:.1f}"} for trial in trials]
    return table(list(rows[0]), [list(row.values()) for row in rows], left=["fingerprint"])
