"""What was measured on 1..N workers, and what follows from it (pure but for `save` and `load`).

A study holds trials: one run of the same job on so many workers. Every trial's first steps are dropped; a step lasts as
long as on its slowest rank; checkpoints and evaluations are counted apart. In: the step phases of runs. Out: a JSON
file, and rows with median, spread, speed-up and efficiency.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from unisono.errors import ConfigError
from unisono.observe.phases import StepPhases
from unisono.system.files import read_json, write_whole

KIND, VERSION = "unisono scaling", 1
STEP_PHASES = ("data", "forward", "backward", "reduce", "update", "other")
"""What a step is made of; the rest happens between steps."""
BETWEEN = ("checkpoint", "evaluate")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One run."""

    workers: int  #: Number of processes.
    repeat: int  #: 0-based number of the repetition.
    batch_size: int  #: Samples of a step over all workers.
    steps: int  #: Steps that were counted, warm-up left out.
    total_s: float  #: From the launch to the end of the last process.
    startup_s: float  #: From the launch to the first step.
    step_s: float  #: Median of the counted steps.
    step_q1_s: float  #: A quarter of them were not longer.
    step_q3_s: float  #: Three quarters of them were not longer.
    phases_s: list[dict[str, float]]  #: For each rank, the median seconds of a counted step by phase.
    between_s: list[dict[str, float]]  #: For each rank, seconds of the whole run in checkpoints and evaluations.
    fingerprint: str  #: Of the run.
    load: float  #: Load average of the machine when it began.


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """Trials of one job."""

    target: str  #: Recipe or script.
    weak: bool  #: The batch grew with the workers.
    strategy: str  #: Name of it; with ``exact`` and ``fsdp`` fingerprints must agree.
    is_exact: bool  #: Whether the strategy promises equal fingerprints.
    warmup: int  #: Steps dropped at the beginning of each trial.
    cores: int  #: Usable cores of the machine.
    threads: int  #: Threads of each worker.
    device: str  #: ``cpu`` or ``cuda``.
    environment: dict[str, Any]  #: As in a run's ``environment.json``.
    command: str  #: What made it.
    date: str  #: ISO 8601.
    trials: list[Trial]  #: In the order in which they were run.

    @property
    def workers(self) -> list[int]:
        """Numbers of workers, ascending."""
        return sorted({trial.workers for trial in self.trials})

    @property
    def fingerprints(self) -> dict[str, list[int]]:
        """For each fingerprint, the numbers of workers that ended with it."""
        found: dict[str, list[int]] = {}
        for trial in sorted(self.trials, key=lambda trial: trial.workers):
            workers = found.setdefault(trial.fingerprint, [])
            if trial.workers not in workers:
                workers.append(trial.workers)
        return found

    @property
    def agrees(self) -> bool | None:
        """Whether fingerprints are equal as promised; None where nothing was promised."""
        if not self.is_exact or self.weak:
            return None
        return len(self.fingerprints) == 1


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """All trials on one number of workers."""

    workers: int  #: Number of processes.
    batch_size: int  #: Samples of a step.
    step_s: float  #: Median of the trials' medians.
    low_s: float  #: The fastest trial; of a single one, the first quartile of its steps.
    high_s: float  #: The slowest trial; of a single one, the third quartile of its steps.
    samples_per_s: float  #: At the median step.
    speedup: float  #: Over one worker; where one worker was not measured, over the fewest, taken as ideal.
    efficiency: float  #: Speed-up over workers.
    startup_s: float  #: Median.
    total_s: float  #: Median.
    checkpoint_s: float  #: Median over trials of the slowest rank's.
    is_oversubscribed: bool  #: There are more threads than cores: the workers take turns.
    phases_s: dict[str, float]  #: Median over ranks and trials of a step's phases.

    @property
    def parts_s(self) -> dict[str, float]:
        """What the step is made of, in seconds: the phases, and by how much its slowest rank is behind the median."""
        return {**self.phases_s, "slowest rank": max(0.0, self.step_s - math.fsum(self.phases_s.values()))}


def trial_of(
    records: Sequence[StepPhases], *, workers: int, repeat: int, warmup: int, launched_ns: int, total_s: float,
    batch_size: int, fingerprint: str, load: float,
) -> Trial:  # fmt: skip
    """Return what the step phases of one run say."""
    steps = sorted({record.step for record in records})
    by_place = {(record.rank, record.step): record for record in records}
    if len(by_place) != workers * len(steps) or len(records) != len(by_place) or not steps:
        raise ConfigError(
            f"expected one record of each step from each of {workers} workers, got {len(records)} of {len(steps)} "
            "steps. Hint: a run that was disturbed cannot be timed."
        )
    kept = steps[warmup:]
    if len(kept) < 2:
        raise ConfigError(
            f"expected at least 2 steps after {warmup} of warm-up, got {len(steps)} in all. "
            "Hint: more --steps, or a smaller --warmup."
        )

    def spent_s(rank: int, step: int, phase: str) -> float:
        return by_place[rank, step].ns.get(phase, 0) / 1e9

    lengths = [max(sum(spent_s(rank, step, p) for p in STEP_PHASES) for rank in range(workers)) for step in kept]
    q1, median, q3 = statistics.quantiles(lengths, n=4, method="inclusive")
    first_ns = min(record.began_ns for record in records)
    return Trial(
        workers=workers, repeat=repeat, batch_size=batch_size, steps=len(kept), total_s=total_s,
        startup_s=(first_ns - launched_ns) / 1e9, step_s=median, step_q1_s=q1, step_q3_s=q3,
        phases_s=[{p: statistics.median(spent_s(rank, step, p) for step in kept) for p in STEP_PHASES}
                  for rank in range(workers)],
        between_s=[{p: sum(spent_s(rank, step, p) for step in steps) for p in BETWEEN} for rank in range(workers)],
        fingerprint=fingerprint, load=load,
    )  # fmt: skip


def summarise(study: Study) -> list[Row]:
    """Return a row for each number of workers, ascending."""
    groups = {count: [trial for trial in study.trials if trial.workers == count] for count in study.workers}
    medians = {count: statistics.median(trial.step_s for trial in found) for count, found in groups.items()}
    base = min(groups)
    base_rate = groups[base][0].batch_size / medians[base] / base
    rows = []
    for count, found in groups.items():
        step_s, only = medians[count], found[0]
        rate = only.batch_size / step_s
        between = [max(rank["checkpoint"] for rank in trial.between_s) for trial in found]
        phases = {
            phase: statistics.median(rank[phase] for trial in found for rank in trial.phases_s) for phase in STEP_PHASES
        }
        rows.append(Row(
            workers=count, batch_size=only.batch_size, step_s=step_s,
            low_s=only.step_q1_s if len(found) == 1 else min(trial.step_s for trial in found),
            high_s=only.step_q3_s if len(found) == 1 else max(trial.step_s for trial in found),
            samples_per_s=rate, speedup=rate / base_rate, efficiency=rate / base_rate / count,
            startup_s=statistics.median(trial.startup_s for trial in found),
            total_s=statistics.median(trial.total_s for trial in found),
            checkpoint_s=statistics.median(between),
            is_oversubscribed=study.device == "cpu" and count * study.threads > study.cores, phases_s=phases,
        ))  # fmt: skip
    return rows


def beyond_ideal(rows: Sequence[Row], weak: bool) -> dict[int, dict[str, float]]:
    """Return for each number of workers the seconds of a step beyond the ideal, by phase: why it flattens.

    Ideal is the first row's phase, divided among the workers (strong) or as it is (weak); the exchange has none.
    """
    first = rows[0]
    found = {}
    for row in rows[1:]:
        share = 1.0 if weak else first.workers / row.workers
        ideal = {phase: 0.0 if phase == "reduce" and first.workers == 1 else share * seconds
                 for phase, seconds in first.phases_s.items()}  # fmt: skip
        found[row.workers] = {phase: row.phases_s[phase] - ideal[phase] for phase in STEP_PHASES}
    return found


def save(study: Study, path: Path) -> None:
    """Write a study, whole or not at all."""
    plain = {"kind": KIND, "version": VERSION, **asdict(study)}
    write_whole(path, (json.dumps(plain, indent=1) + "\n").encode())


def load(path: Path) -> Study:
    """Return the study in a file.

    Raises:
        ConfigError: There is none, it is truncated, or another version wrote it.
    """
    return study_from(read_json(path), str(path))


def study_from(plain: Any, name: str) -> Study:
    """Return a study from what its file holds."""
    if not isinstance(plain, Mapping) or plain.get("kind") != KIND:
        raise ConfigError(f"{name} is no scaling study. Hint: unisono bench scaling writes them.")
    if plain.get("version") != VERSION:
        raise ConfigError(
            f"{name} has version {plain.get('version')!r}, this program reads version {VERSION}. "
            "Hint: read it with the program that wrote it, or measure again."
        )
    fields = {key: value for key, value in plain.items() if key not in ("kind", "version", "trials")}
    try:
        study = Study(**fields, trials=[Trial(**trial) for trial in plain["trials"]])
        is_whole = bool(study.trials) and all(
            trial.workers == len(trial.phases_s) == len(trial.between_s)
            and all(0 < one < math.inf for one in (trial.step_s, trial.step_q1_s, trial.step_q3_s))
            and all(0 <= one < math.inf for rank in trial.phases_s for one in rank.values())
            for trial in study.trials
        )
        summarise(study)
    except (TypeError, KeyError, ValueError, AttributeError, ArithmeticError) as error:
        raise ConfigError(f"{name} is damaged: {error!r}. Hint: measure again.") from error
    if not is_whole:
        raise ConfigError(f"{name} is damaged: a trial lacks ranks or steps. Hint: measure again.")
    return study
