"""A run under a schedule of faults: does it end with the bits of an undisturbed one."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.experiments.fault_schedule import KINDS, Fault, plan_faults
from unisono.experiments.injector import Injection, Injector
from unisono.experiments.trials import Tell, check_target, flag_of, is_script, read_result, script_environment, silent
from unisono.launchers.scratch import scratch_directory
from unisono.observe.compare import first_difference


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaosReport:
    """What the faults have changed."""

    equal: bool  #: The disturbed run ended well, with fingerprint and ledger of the undisturbed one.
    seed: int  #: Of the schedule.
    seconds: float  #: How long the disturbed run took.
    exit_code: int  #: Of the disturbed run.
    reference: str  #: Fingerprint of the undisturbed run.
    disturbed: str | None  #: Fingerprint of the disturbed run; None where it failed.
    parted: tuple[int, list[str]] | None  #: The first step at which the ledgers part, and the fields that differ.
    faults: list[Injection]  #: What came of each fault.

    @property
    def landed(self) -> int:
        """Number of faults that came in the middle of the run."""
        return sum(fault.has_landed for fault in self.faults)


def chaos(
    target: str, args: Sequence[str] = (), *, env: Mapping[str, str], workers: int = 2, kills: int = 10, seed: int = 0,
    kinds: Sequence[str] = tuple(KINDS), out: str | None = None, tell: Tell = silent, **options: Any,
) -> ChaosReport:  # fmt: skip
    """Run a recipe or a script undisturbed, then once more under a schedule of faults, and compare."""
    with undisturbed(target, args, options, env=env, workers=workers, out=out, tell=tell) as (scratch, reference):
        steps = reference["steps"]
        faults = plan_faults(seed, kills, steps=steps, workers=workers, kinds=tuple(kinds))
        if options.get("checkpoint_every") is None and not is_script(target):
            options["checkpoint_every"] = max(1, steps // (4 * kills))
        tell(f"{steps} steps, {kills} faults, seed {seed}:")
        began, calm, rough = time.monotonic(), scratch / "reference", scratch / "disturbed"
        command = partial(command_of, target, args, options, rough)
        injector = Injector(command, environment_of(target, options, workers, env, rough), scratch, workers)
        injections, code = _disturb(injector, faults, tell)
        seconds = round(time.monotonic() - began, 1)
        disturbed = read_result(rough)["fingerprint"] if code == 0 else None
        parted = first_difference(calm / "ledger.jsonl", rough / "ledger.jsonl")
    return ChaosReport(
        equal=disturbed == reference["fingerprint"] and parted is None, seed=seed, seconds=seconds,
        exit_code=code, reference=reference["fingerprint"], disturbed=disturbed, parted=parted, faults=injections,
    )  # fmt: skip


@contextlib.contextmanager
def undisturbed(
    target: str, args: Sequence[str], options: Mapping[str, Any], *, env: Mapping[str, str], workers: int,
    out: str | None, tell: Tell,
) -> Iterator[tuple[Path, dict[str, Any]]]:  # fmt: skip
    """Run the job undisturbed; yield the directory for all runs, with this one in ``reference``, and its result.

    Raises:
        ConfigError: A wrong setting, or the run failed.
    """
    check_target(target, args, options, ("replicas",))
    if out is not None and Path(out).exists():
        raise ConfigError(f"expected a new directory for --out, got {out}, which exists.")
    with contextlib.nullcontext(out) if out is not None else scratch_directory("chaos") as place:
        scratch = Path(place)
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        tell(f"{target} on {workers} workers, undisturbed ...")
        calm = scratch / "reference"
        done = subprocess.run(
            command_of(target, args, options, calm, workers), env=environment_of(target, options, workers, env, calm),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ConfigError(f"the undisturbed run failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        yield scratch, read_result(calm)


def _disturb(injector: Injector, faults: Sequence[Fault], tell: Tell) -> tuple[list[Injection], int]:
    found = []
    try:
        injector.start()
        for fault in faults:
            found.append(injector.inject(fault))
            tell(_line(found[-1], len(faults)))
            if not found[-1].has_landed and found[-1].step == 0:
                break
        return found, injector.finish()
    finally:
        injector.close()


def _line(injection: Injection, count: int) -> str:
    fault = injection.fault
    where = {
        "kill-worker": f"rank {fault.rank}",
        "stop": f"rank {fault.rank} for {fault.hold_s:.1f} s",
        "resize": f"to {fault.workers} workers",
    }.get(fault.kind, "")
    line = f"[{fault.number:>3}/{count}] {fault.kind:<13} "
    if not injection.step:
        return f"{line}planned for step {fault.step}: the run had ended before"
    back = "" if injection.recovery_s is None else f"  next step after {injection.recovery_s:.1f} s"
    missed = "" if injection.has_landed else "  DID NOT LAND"
    return f"{line}step {injection.step:>5}, {injection.phase:<14} {where}{back}{missed}"


def command_of(
    target: str, args: Sequence[str], options: Mapping[str, Any], out: Path, workers: int, *how: str
) -> list[str]:
    """Return the command line of a launch, in which `how` stands with the options of the launcher."""
    start = [sys.executable, "-m", "unisono"]
    if is_script(target):
        return [*start, "run", "-n", str(workers), "--max-restarts", "3", *how, target, *args]
    given = [part for name, value in options.items() if value is not None for part in (flag_of(name), str(value))]
    return [*start, "train", target, "-n", str(workers), "--out", str(out), *given, *how]


def environment_of(
    target: str, options: Mapping[str, Any], workers: int, env: Mapping[str, str], out: Path
) -> dict[str, str]:
    """Return the variables of a launch."""
    own = script_environment(out, options.get("replicas") or workers) if is_script(target) else {}
    return {**env, **own}
