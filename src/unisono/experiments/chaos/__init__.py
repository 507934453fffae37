"""A run under a schedule of faults: does it end with the bits of an undisturbed one."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from unisono.errors import ConfigError
from unisono.experiments.fault_schedule import KINDS, Fault, plan_faults
from unisono.experiments.injector import Injection, Injector
from unisono.experiments.job import plan, take_strategy
from unisono.experiments.trials import (
    Tell,
    as_typed,
    check_target,
    is_script,
    read_result,
    script_environment,
    silent,
)  # fmt: skip
from unisono.launchers.scratch import scratch_directory
from unisono.observe.compare import first_difference
from unisono.system.machine import resolve_devices
from unisono.system.words import counted


@final
@dataclass(frozen=True, slots=True)
class Job:
    """What is run, undisturbed and disturbed."""

    target: str  #: A recipe, or the path of a script.
    args: Sequence[str]  #: The script's own.
    options: Mapping[str, Any]  #: Of a recipe, by key; of a script ``replicas`` and ``threads``.
    launch: Mapping[str, Any]  #: Of the launcher, by key, as typed.
    env: Mapping[str, str]  #: Variables of its processes.

    def check(self, workers: int) -> None:
        """Refuse (`ConfigError`) what cannot run, before anything starts."""
        check_target(self.target, self.args, self.options, ("replicas", "threads"))
        devices = resolve_devices(self.launch.get("gpus"), self.env)
        if not is_script(self.target):
            plan(self.target, str(workers), dict(self.options), devices)

    def kinds(self, asked: Sequence[str]) -> tuple[str, ...]:
        """Return the kinds of faults that are drawn from.

        Raises:
            ConfigError: Other numbers of workers are asked for, and the strategy has other bits on them.
        """
        strategy = take_strategy(dict(self.options))
        if "resize" in asked and not strategy.is_exact:
            raise ConfigError(
                f"with --strategy {strategy.name} the number of workers is part of the result, and --fault resize "
                "changes it. Hint: leave it out."
            )
        return tuple(asked) or tuple(kind for kind in KINDS if strategy.is_exact or kind != "resize")

    def saving_every(self, steps: int) -> "Job":
        """Return the job with checkpoints after so many steps, where it is a recipe's and nobody has said how many."""
        if is_script(self.target) or self.options.get("checkpoint_every") is not None:
            return self
        return replace(self, options={**self.options, "checkpoint_every": steps})

    def command(self, out: Path, workers: int, *how: str) -> list[str]:
        """Return the command line of a launch, in which `how` stands with the options of the launcher."""
        start = [sys.executable, "-m", "unisono"]
        given = {"max_restarts": 3, "live": "off", **self.launch, **self.options}  # a fault is to mean a restart
        if is_script(self.target):
            given.pop("replicas", None)  # a variable says it
            return [*start, "run", "-n", str(workers), *as_typed(given), *how, self.target, *self.args]
        return [*start, "train", self.target, "-n", str(workers), "--out", str(out), *as_typed(given), *how]

    def environment(self, out: Path, workers: int) -> dict[str, str]:
        """Return the variables of a launch."""
        own = script_environment(out, self.options.get("replicas") or workers) if is_script(self.target) else {}
        return {**self.env, **own}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaosReport:
    """What the faults have changed."""

    equal: bool  #: The disturbed run ended well, with fingerprint and ledger of the undisturbed one.
    fault_seed: int  #: Of the schedule.
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
    target: str, args: Sequence[str] = (), *, env: Mapping[str, str], workers: int = 2, kills: int = 10,
    fault_seed: int = 0, kinds: Sequence[str] = (), out: str | None = None, launch: Mapping[str, Any] | None = None,
    tell: Tell = silent, **options: Any,
) -> ChaosReport:  # fmt: skip
    """Run a recipe or a script undisturbed, then once more under a schedule of faults, and compare.

    Args:
        target: The recipe, or the script's path.
        args: The script's own.
        env: Variables of the processes that are started.
        workers: Processes at the start.
        kills: Faults in all.
        fault_seed: Decides which fault comes when.
        kinds: Of faults; where empty all that can leave the bits alone.
        out: Directory for both runs; a temporary one where None.
        launch: Options of the launcher by key, as typed, such as ``{"gpus": "cpu"}``.
        tell: Takes a line about what is going on.
        **options: Options of the recipe, its strategy with them, by key; of a script ``replicas`` and ``threads``.

    Raises:
        ConfigError: A wrong setting, or the undisturbed run failed.
        LaunchError: The disturbed run ended by itself, or stands still.
    """
    job = Job(target, args, options, launch or {}, env)
    drawn = job.kinds(kinds)
    with undisturbed(job, workers, out, tell) as (scratch, reference):
        steps = reference["steps"]
        faults = plan_faults(fault_seed, kills, steps=steps, workers=workers, kinds=drawn)
        job = job.saving_every(max(1, steps // (4 * kills)))
        tell(f"{steps} steps, {kills} faults, seed of the faults {fault_seed}:")
        began, calm, rough = time.monotonic(), scratch / "reference", scratch / "disturbed"
        command, environment = partial(job.command, rough), job.environment(rough, workers)
        injector = Injector(command, environment, scratch, workers, longest_s(reference))
        injections, code = _disturb(injector, faults, tell)
        seconds = round(time.monotonic() - began, 1)
        disturbed = read_result(rough)["fingerprint"] if code == 0 else None
        parted = first_difference(calm / "ledger.jsonl", rough / "ledger.jsonl")
    return ChaosReport(
        equal=disturbed == reference["fingerprint"] and parted is None, fault_seed=fault_seed, seconds=seconds,
        exit_code=code, reference=reference["fingerprint"], disturbed=disturbed, parted=parted, faults=injections,
    )  # fmt: skip


@contextlib.contextmanager
def undisturbed(job: Job, workers: int, out: str | None, tell: Tell) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Run the job undisturbed; yield the directory for all runs, with this one in ``reference``, and its result.

    Raises:
        ConfigError: A wrong setting, or the run failed.
    """
    job.check(workers)
    if out is not None and Path(out).exists():
        raise ConfigError(f"expected a new directory for --out, got {out}, which exists.")
    with contextlib.nullcontext(out) if out is not None else scratch_directory("chaos") as place:
        scratch = Path(place)
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        tell(f"{job.target} on {counted(workers, 'worker')}, undisturbed ...")
        calm = scratch / "reference"
        done = subprocess.run(
            job.command(calm, workers), env=job.environment(calm, workers),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ConfigError(f"the undisturbed run failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        yield scratch, read_result(calm)


def longest_s(reference: Mapping[str, Any]) -> float:
    """Return how long a disturbed run may need for a step, or its end, by the result of the undisturbed one."""
    return float(600 + 20 * reference["train_s"])


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
