"""``unisono verify``: run the same score with several numbers of workers and compare the bits."""

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from unisono.cli.completion import RecipeName, complete_target
from unisono.cli.options.fields import recipe_options
from unisono.cli.options.settings import number, to_json
from unisono.cli.outcome import FAILED, nothing_kept, perform
from unisono.experiments.trials import (
    Start,
    check_target,
    is_script,
    parse_workers,
    read_fresh_result,
    refuse_arguments,
    refuse_recipe_options,
    script_starter,
)
from unisono.launchers.scratch import scratch_directory
from unisono.options.quantities import REPLICAS, THREADS


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedRun:
    """One run of the score.

    Attributes:
        seconds: Wall time, process start included.
        samples_hashed: Steps in the ledger; a run without steps proves nothing.
    """

    workers: int
    seconds: float
    steps: int
    fingerprint: str
    ledger: Path


@click.command(short_help="Prove that the number of workers does not change a bit.")
@click.argument("target", metavar="RECIPE|SCRIPT", type=RecipeName("a script, or "), shell_complete=complete_target)
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]")
@click.option("-w", "--workers", default="1,2", show_default=True, metavar="N,N,...", help="Numbers of workers to try.")
@click.option(
    "--replicas",
    type=number(REPLICAS),
    metavar="V",
    help="Logical workers.  [default: the recipe's; for a script that leaves them open, the most workers]",
)
@recipe_options("epochs", "batch_size", "seed", "model", "limit", "data", scripts_too=True)
@click.option("--threads", type=number(THREADS), metavar="T", help="Threads per process.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the comparison as JSON, and nothing else, on standard output."
)
def verify(target: str, args: tuple[str, ...], workers: str, as_json: bool, **given: Any) -> None:
    """Run RECIPE or SCRIPT once for each number of workers and compare the fingerprints.

    A script's own ARGS stand after ``--``. Its run directory is replaced by a temporary one. Where the
    fingerprints differ, the first step at which the ledgers part is named.

    Exit code: 0 only when all fingerprints are equal; 1 when they differ; 2 for wrong settings; 130 after Ctrl-C; else
    that of a failed worker.
    """
    done = nothing_kept("the runs so far")
    sys.exit(perform("verify", lambda: _verify(target, args, workers, as_json, given), done))


def _verify(target: str, args: tuple[str, ...], workers: str, as_json: bool, given: dict[str, Any]) -> int:
    from unisono.errors import ConfigError

    check_target(target)
    counts = parse_workers(workers)
    if len(counts) < 2:
        raise ConfigError(f"expected at least two runs to compare, got --workers {workers}. Hint: --workers 1,2.")
    with scratch_directory("verify") as scratch:
        start = (_script if is_script(target) else _recipe)(target, args, counts, given, scratch)
        trials: list[VerifiedRun] = []
        for number, count in enumerate(counts):
            click.echo(f"[{number + 1}/{len(counts)}] {target} on {count} worker{'s' * (count > 1)} ...", err=True)
            trials.append(_try(start, count, Path(scratch) / f"{number}-{count}", given))
        return _judge(trials, as_json)


def _recipe(target: str, args: tuple[str, ...], counts: list[int], given: dict[str, Any], scratch: str) -> Start:
    from unisono.experiments.job import plan, run_job

    refuse_arguments(target, args)
    job = plan(target, str(max(counts)), given)

    def start(count: int, out: Path) -> None:
        run_job(
            replace(job, workers=count, options=replace(job.options, out=str(out))), output="quiet", scratch=scratch
        )

    for count in counts:
        plan(target, str(count), given)
    return start


def _script(target: str, args: tuple[str, ...], counts: list[int], given: dict[str, Any], scratch: str) -> Start:
    refuse_recipe_options(target, given, "replicas", "threads")
    replicas = given["replicas"] or max(counts)
    return script_starter(target, args, threads=given["threads"], replicas_of=lambda _: replicas, scratch=scratch)


def _try(start: Start, count: int, out: Path, given: dict[str, Any]) -> VerifiedRun:
    from unisono.errors import ConfigError

    began = time.monotonic()
    start(count, out)
    seconds = time.monotonic() - began
    result = read_fresh_result(out, count)
    score = json.loads((out / "score.json").read_text())
    for name in ("replicas", "threads"):
        if given[name] not in (None, score[name]):
            raise ConfigError(
                f"--{name} {given[name]} was given, but the script sets {name}={score[name]} itself. "
                f"Hint: leave --{name} out, or {name} unset in unisono.Run()."
            )
    return VerifiedRun(
        workers=count,
        seconds=seconds,
        steps=result["steps"],
        fingerprint=result["fingerprint"],
        ledger=out / "ledger.jsonl",
    )


def _judge(trials: list[VerifiedRun], as_json: bool) -> int:
    from unisono.observe.compare import first_difference

    first = trials[0]
    parted = {trial.workers: first_difference(first.ledger, trial.ledger) for trial in trials[1:]}
    equal = all(trial.fingerprint == first.fingerprint for trial in trials) and not any(parted.values())
    if as_json:
        rows = [{key: value for key, value in asdict(trial).items() if key != "ledger"} for trial in trials]
        click.echo(to_json({"equal": equal, "trials": rows}))
    else:
        click.echo(f"{'workers':>7}  {'seconds':>7}  {'steps':>6}  fingerprint")
        for trial in trials:
            click.echo(f"{trial.workers:>7}  {trial.seconds:>7.1f}  {trial.steps:>6}  {trial.fingerprint}")
    for count, difference in parted.items():
        if difference is not None:
            step, fields = difference
            click.echo(f"{first.workers} and {count} workers part at step {step} in: {', '.join(fields)}.", err=True)
    click.echo("equal" if equal else "DIFFERENT", err=True)
    return 0 if equal else FAILED
