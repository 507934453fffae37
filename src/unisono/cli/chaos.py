"""``unisono chaos``: disturb a run on purpose, and compare its bits with those of an undisturbed one."""

import contextlib
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.completion import RecipeName, complete_target
from unisono.cli.options.fields import recipe_options
from unisono.cli.options.settings import PATH, number, to_json
from unisono.cli.outcome import FAILED, command_line, nothing_kept, perform
from unisono.experiments.trials import (
    check_target,
    flag_of,
    is_script,
    read_result,
    refuse_arguments,
    refuse_recipe_options,
    script_environment,
)
from unisono.launchers.scratch import scratch_directory
from unisono.options.quantities import REPLICAS, RUNS, SEED, STEPS, WORKERS

if TYPE_CHECKING:
    from unisono.experiments.injector import Blow

KINDS = ("kill-worker", "kill-all", "kill-launcher", "stop", "resize")


@click.command(short_help="Kill a run's processes, and prove that its bits stay the same.")
@click.argument("target", metavar="RECIPE|SCRIPT", type=RecipeName("a script, or "), shell_complete=complete_target)
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]")
@click.option("-n", "--workers", type=number(WORKERS), default=2, show_default=True, metavar="N", help="Processes.")
@click.option("--kills", type=number(RUNS), default=10, show_default=True, metavar="K", help="Faults in all.")
@click.option(
    "--seed", type=number(SEED), default=0, metavar="S", show_default=True, help="Repeats the schedule of faults."
)
@click.option(
    "--fault",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    help="Kind of fault; may be given several times.  [default: all]",
)
@click.option(
    "--replicas", type=number(REPLICAS), metavar="V", help="Logical workers.  [default: the recipe's; for a script, N]"
)
@recipe_options("epochs", "batch_size", "model", "limit", "data", scripts_too=True)
@click.option(
    "--checkpoint-every",
    type=number(STEPS),
    metavar="STEPS",
    help="Recipes.  [default: a quarter of the steps between faults]",
)
@click.option("--out", type=PATH, metavar="DIR", help="Keep both run directories and the log here.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the comparison as JSON, and nothing else, on standard output."
)
def chaos(
    target: str,
    args: tuple[str, ...],
    workers: int,
    kills: int,
    seed: int,
    kinds: tuple[str, ...],
    out: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run RECIPE or SCRIPT undisturbed, then once more under a schedule of faults, and compare.

    Faults come at steps that the seed decides: kill one worker, kill all, kill the launcher and start the command
    again, stop and continue a worker, change the number of workers. One counts only when it has landed in the midst of
    the run. A script's own ARGS stand after ``--``; it has to train through unisono.Run. Its run directory is
    replaced.

    Exit code: 0 only when all faults have landed and fingerprints and ledgers are equal; 1 when not; 2 for wrong
    settings; 130 after Ctrl-C.
    """

    def act() -> int:
        return _chaos(target, args, workers, kills, seed, kinds or KINDS, out, as_json, given)

    def kept() -> str:
        return f"{out} holds both runs as far as they came. Hint: remove it, then again: {command_line()}"

    sys.exit(perform("chaos", act, kept if out else nothing_kept("the two runs")))


def _chaos(
    target: str,
    args: tuple[str, ...],
    workers: int,
    kills: int,
    seed: int,
    kinds: tuple[str, ...],
    out: str | None,
    as_json: bool,
    given: dict[str, Any],
) -> int:
    from unisono.errors import ConfigError
    from unisono.experiments.fault_schedule import plan_faults

    check_target(target)
    if out is not None and Path(out).exists():
        raise ConfigError(f"expected a new directory for --out, got {out}, which exists.")
    with contextlib.nullcontext(out) if out is not None else scratch_directory("chaos") as place:
        scratch = Path(place)
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        click.echo(f"{target} on {workers} workers, undisturbed ...", err=True)
        reference = _undisturbed(target, args, workers, given, scratch / "reference")
        steps = reference["steps"]
        faults = plan_faults(seed, kills, steps=steps, workers=workers, kinds=kinds)
        if given["checkpoint_every"] is None and not is_script(target):
            given = {**given, "checkpoint_every": max(1, steps // (4 * kills))}
        click.echo(f"{steps} steps, {kills} faults, seed {seed}:", err=True)
        began = time.monotonic()
        blows, code = _disturbed(target, args, workers, given, scratch, faults)
        seconds = round(time.monotonic() - began, 1)
        return _judge(reference, scratch, blows, code, {"seed": seed, "seconds": seconds}, as_json)


def _undisturbed(target: str, args: tuple[str, ...], workers: int, given: dict[str, Any], out: Path) -> dict[str, Any]:
    import subprocess

    from unisono.errors import ConfigError

    done = subprocess.run(
        _command(target, args, workers, given, out), env=_environment(target, given, workers, out),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ConfigError(f"the undisturbed run failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    return read_result(out)


def _disturbed(
    target: str, args: tuple[str, ...], workers: int, given: dict[str, Any], scratch: Path, faults: list[Any]
) -> tuple[list["Blow"], int]:
    from unisono.experiments.injector import Injector

    out = scratch / "disturbed"
    injector = Injector(
        lambda count: _command(target, args, count, given, out),
        _environment(target, given, workers, out), scratch, workers,
    )  # fmt: skip
    blows = []
    try:
        injector.start()
        for fault in faults:
            blow = injector.strike(fault)
            blows.append(blow)
            click.echo(_line(blow, len(faults)), err=True)
            if not blow.has_landed and blow.step == 0:
                break
        return blows, injector.finish()
    finally:
        injector.close()


def _line(blow: "Blow", count: int) -> str:
    fault = blow.fault
    where = {
        "kill-worker": f"rank {fault.rank}",
        "stop": f"rank {fault.rank} for {fault.hold_s:.1f} s",
        "resize": f"to {fault.workers} workers",
    }.get(fault.kind, "")
    if not blow.step:
        return f"[{fault.number:>3}/{count}] {fault.kind:<13} planned for step {fault.step}: the run had ended before"
    back = "" if blow.recovery_s is None else f"  next step after {blow.recovery_s:.1f} s"
    missed = "" if blow.has_landed else "  DID NOT LAND"
    return f"[{fault.number:>3}/{count}] {fault.kind:<13} step {blow.step:>5}, {blow.phase:<14} {where}{back}{missed}"


def _judge(
    reference: dict[str, Any], scratch: Path, blows: list["Blow"], code: int, about: dict[str, Any], as_json: bool
) -> int:
    from statistics import median

    from unisono.observe.compare import first_difference

    result = read_result(scratch / "disturbed") if code == 0 else {"fingerprint": None, "steps": 0}
    parted = first_difference(scratch / "reference" / "ledger.jsonl", scratch / "disturbed" / "ledger.jsonl")
    landed = sum(blow.has_landed for blow in blows)
    equal = result["fingerprint"] == reference["fingerprint"] and parted is None and code == 0
    times = [blow.recovery_s for blow in blows if blow.recovery_s is not None]
    if as_json:
        click.echo(
            to_json({
                "equal": equal, **about, "landed": landed, "exit_code": code,
                "reference": reference["fingerprint"], "disturbed": result["fingerprint"],
                "parted_at_step": parted and parted[0], "faults": [asdict(blow) for blow in blows],
            })
        )  # fmt: skip
    else:
        click.echo(f"undisturbed  {reference['fingerprint']}")
        click.echo(f"disturbed    {result['fingerprint']}")
        spread = f"; next step after {median(times):.1f} s (median), {max(times):.1f} s (longest)" if times else ""
        click.echo(f"{landed} of {len(blows)} faults landed in {about['seconds']} s{spread}")
    if code:
        click.echo(f"the disturbed run ended with exit code {code}.", err=True)
    if parted:
        click.echo(f"the ledgers part at step {parted[0]} in: {', '.join(parted[1])}.", err=True)
    click.echo("equal" if equal else "DIFFERENT", err=True)
    return 0 if equal and landed == len(blows) else FAILED


def _command(target: str, args: tuple[str, ...], workers: int, given: dict[str, Any], out: Path) -> list[str]:
    start = [sys.executable, "-m", "unisono"]
    if is_script(target):
        refuse_recipe_options(target, given, "replicas")
        return [*start, "run", "-n", str(workers), "--max-restarts", "3", target, *args]
    refuse_arguments(target, args)
    options = [part for name, value in given.items() if value is not None for part in (flag_of(name), str(value))]
    return [*start, "train", target, "-n", str(workers), "--out", str(out), *options]


def _environment(target: str, given: dict[str, Any], workers: int, out: Path) -> dict[str, str]:
    own = script_environment(out, given["replicas"] or workers) if is_script(target) else {}
    return {**os.environ, **own}
