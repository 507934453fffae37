"""``unisono verify``: run the same score with several numbers of workers and compare the bits."""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from unisono.cli.outcome import FAILED, perform


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
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
@click.argument("target", metavar="RECIPE|SCRIPT")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]")
@click.option("-w", "--workers", default="1,2", show_default=True, metavar="N,N,...", help="Numbers of workers to try.")
@click.option(
    "--replicas",
    type=int,
    metavar="V",
    help="Logical workers.  [default: the recipe's; for a script that leaves them open, the most workers]",
)
@click.option("--epochs", type=int, metavar="E", help="Recipes: passes over the data.")
@click.option("--batch-size", type=int, metavar="B", help="Recipes: samples per optimizer step.")
@click.option("--seed", type=int, metavar="S", help="Recipes: seed of everything random.")
@click.option("--model", metavar="NAME", help="Recipes: one of its models.")
@click.option("--limit", type=int, metavar="K", help="Recipes: use at most K samples.")
@click.option("--data", type=click.Path(), metavar="PATH", help="Recipes: where the data is.")
@click.option("--threads", type=int, metavar="T", help="Threads per process.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the comparison as JSON, and nothing else, on standard output."
)
def verify(target: str, args: tuple[str, ...], workers: str, as_json: bool, **given: Any) -> None:
    """Run RECIPE or SCRIPT once for each number of workers and compare the fingerprints.

    A script's own ARGS stand after ``--``. Its run directory is replaced by a temporary one. Where the
    fingerprints differ, the first step at which the ledgers part is named.

    Exit code: 0 only when all fingerprints are equal; 1 when they differ; 2 for wrong settings; else that of a
    failed worker.
    """
    sys.exit(perform("verify", lambda: _verify(target, args, workers, as_json, given)))


def _verify(target: str, args: tuple[str, ...], workers: str, as_json: bool, given: dict[str, Any]) -> int:
    from unisono.errors import ConfigError

    try:
        counts = [int(part) for part in workers.split(",")]
    except ValueError:
        raise ConfigError(f"expected --workers as numbers such as 1,2,4, got {workers!r}.") from None
    if len(counts) < 2:
        raise ConfigError(f"expected at least two runs to compare, got --workers {workers}. Hint: --workers 1,2.")
    with tempfile.TemporaryDirectory(prefix="unisono-verify-") as scratch:
        start = _script(target, args, counts, given) if is_script(target) else _recipe(target, args, counts, given)
        trials: list[Trial] = []
        for number, count in enumerate(counts):
            click.echo(f"[{number + 1}/{len(counts)}] {target} on {count} worker{'s' * (count > 1)} ...", err=True)
            trials.append(_try(start, count, Path(scratch) / f"{number}-{count}", given))
        return _judge(trials, as_json)


def is_script(target: str) -> bool:
    """Whether a target is a file, not the name of a recipe."""
    return target.endswith(".py") or "/" in target


def _recipe(
    target: str, args: tuple[str, ...], counts: list[int], given: dict[str, Any]
) -> Callable[[int, Path], None]:
    from unisono.cli.train import plan, play
    from unisono.errors import ConfigError

    if args:
        raise ConfigError(f"recipe {target!r} takes no arguments, got {' '.join(args)}. See unisono verify --help.")
    job = plan(target, str(max(counts)), given)

    def start(count: int, out: Path) -> None:
        play(replace(job, workers=count, options=replace(job.options, out=str(out))), output="quiet")

    for count in counts:
        plan(target, str(count), given)
    return start


def _script(
    target: str, args: tuple[str, ...], counts: list[int], given: dict[str, Any]
) -> Callable[[int, Path], None]:
    from unisono.errors import ConfigError
    from unisono.launchers.local import run_local
    from unisono.launchers.spec import LaunchSpec, ScriptTarget, check_target

    for name, value in given.items():
        if value is not None and name not in ("replicas", "threads"):
            raise ConfigError(f"--{name.replace('_', '-')} is for recipes; {target} sets it itself.")
    script = ScriptTarget(path=target, args=args)
    check_target(script)
    replicas = given["replicas"] or max(counts)

    def start(count: int, out: Path) -> None:
        env = {"UNISONO_RUN_DIR": str(out), "UNISONO_REPLICAS": str(replicas)}
        run_local(LaunchSpec(target=script, workers=count, threads=given["threads"], env=env, output="quiet"))

    return start


def _try(start: Callable[[int, Path], None], count: int, out: Path, given: dict[str, Any]) -> Trial:
    from unisono.errors import ConfigError

    began = time.monotonic()
    start(count, out)
    seconds = time.monotonic() - began
    if not (out / "result.json").exists():
        raise ConfigError(
            "the script ended without a result. "
            "Hint: train through unisono.Run or unisono.Trainer, to the end of run.steps()."
        )
    result = json.loads((out / "result.json").read_text())
    if result["world_size"] != count or result["resumed_from_step"] or not result["steps"]:
        raise ConfigError(
            f"expected a fresh run of {count} workers, got {result['world_size']} workers and {result['steps']} steps, "
            f"resumed from step {result['resumed_from_step']}. Hint: leave the world to the launcher."
        )
    score = json.loads((out / "score.json").read_text())
    for name in ("replicas", "threads"):
        if given[name] not in (None, score[name]):
            raise ConfigError(
                f"--{name} {given[name]} was given, but the script sets {name}={score[name]} itself. "
                f"Hint: leave --{name} out, or {name} unset in unisono.Run()."
            )
    return Trial(
        workers=count,
        seconds=seconds,
        steps=result["steps"],
        fingerprint=result["fingerprint"],
        ledger=out / "ledger.jsonl",
    )


def _judge(trials: list[Trial], as_json: bool) -> int:
    from unisono.observe.compare import first_difference

    first = trials[0]
    parted = {trial.workers: first_difference(first.ledger, trial.ledger) for trial in trials[1:]}
    equal = all(trial.fingerprint == first.fingerprint for trial in trials) and not any(parted.values())
    if as_json:
        rows = [{key: value for key, value in asdict(trial).items() if key != "ledger"} for trial in trials]
        click.echo(json.dumps({"equal": equal, "trials": rows}))
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
