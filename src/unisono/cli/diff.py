"""``unisono diff``: the first difference between two runs."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unisono.cli.options.fields import result_options
from unisono.cli.options.settings import RUN
from unisono.cli.output.outcome import conclude, tell, verb
from unisono.cli.output.tables import answer

if TYPE_CHECKING:
    from unisono.report.comparison.run_diff import RunDiff


@click.command(short_help="Show the first difference between two runs.")
@click.argument("run_a", metavar="RUN_A", type=RUN)
@click.argument("run_b", metavar="RUN_B", type=RUN)
@result_options
@verb("diff")
def diff(run_a: str, run_b: str, as_json: bool) -> int:
    """Compare the run directories RUN_A and RUN_B: scores, ledgers step by step, fingerprints and metrics.

    Names the first differing step and what differed first in it: weights, sample ids, generator seed, loss or
    gradient; with the parameter, the replica and its samples where the runs were made with --detail
    (detail=True). Differences of the environment are shown as possible causes. A ledger whose lines have been
    changed since they were written is named, with the line.

    Exit code: 0 when the runs are equal; 1 when they differ; 2 where there is no run.
    """
    from unisono.report.comparison.run_diff import compare_runs

    found = compare_runs(Path(run_a), Path(run_b))
    answer(asdict(found), as_json, lambda: _lines(found))
    if found.hint:
        tell(found.hint)
    return conclude(found.equal, as_json)


def _lines(found: "RunDiff") -> Iterator[str]:
    for title, lines in (
        ("damage", found.damage), ("score", found.score), ("environment", found.environment),
        ("metrics", found.metrics), ("first step", [found.step]), ("update", [found.update]), ("first", [found.first]),
    ):  # fmt: skip
        yield from (f"{title:<12} {line}" for line in lines if line is not None)
    if found.first is None and (found.score or found.metrics):
        yield "all steps and the final weights are equal"
    yield from (f"{'':<12} {note}" for note in found.notes)
    if found.fingerprints[0] != found.fingerprints[1]:
        yield f"{'fingerprints':<12} {found.fingerprints[0]}"
        yield f"{'->':>12} {found.fingerprints[1]}"
