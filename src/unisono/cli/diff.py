"""``unisono diff``: where two runs part, and what differed first."""

import sys
from pathlib import Path

import click

from unisono.cli.options.settings import PATH, to_json
from unisono.cli.outcome import FAILED, perform


@click.command(short_help="Show where two runs part, and what differed first.")
@click.argument("run_a", metavar="RUN_A", type=PATH)
@click.argument("run_b", metavar="RUN_B", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON, and nothing else.")
def diff(run_a: str, run_b: str, as_json: bool) -> None:
    """Compare the run directories RUN_A and RUN_B: scores, ledgers step by step, fingerprints and metrics.

    Names the first differing step and what differed first in it: weights, sample ids, generator seed, loss or
    gradient; with the parameter, the replica and its samples where the runs were made with --detail
    (detail=True). Differences of the environment are shown as possible causes. A ledger whose lines have been
    changed since they were written is named, with the line.

    Exit code: 0 when the runs are equal; 1 when they differ; 2 where there is no run.
    """
    sys.exit(perform("diff", lambda: _diff(Path(run_a), Path(run_b), as_json)))


def _diff(run_a: Path, run_b: Path, as_json: bool) -> int:
    # Not at the top: `--help` must not pay for them.
    from dataclasses import asdict

    from unisono.report.run_diff import compare_runs

    found = compare_runs(run_a, run_b)
    if as_json:
        click.echo(to_json(asdict(found)))
        return 0 if found.equal else FAILED
    for title, lines in (
        ("damage", found.damage), ("score", found.score), ("environment", found.environment),
        ("metrics", found.metrics),
    ):  # fmt: skip
        for line in lines:
            click.echo(f"{title:<12} {line}")
    if found.step is not None:
        click.echo(f"{'first step':<12} {found.step}")
    if found.first is not None:
        click.echo(f"{'first':<12} {found.first}")
    elif found.score or found.metrics:
        click.echo("all steps and the final weights are equal")
    for note in found.notes:
        click.echo(f"{'':<12} {note}")
    if found.fingerprints[0] != found.fingerprints[1]:
        click.echo(f"{'fingerprints':<12} {found.fingerprints[0]} -> {found.fingerprints[1]}")
    if found.hint:
        click.echo(found.hint, err=True)
    click.echo("equal" if found.equal else "DIFFERENT", err=True)
    return 0 if found.equal else FAILED
