"""A run directory as plain values for the page: its files read once, damage named."""

import itertools
import json
import math
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from unisono.errors import ConfigError
from unisono.launchers.worker.kept_failure import NAME as FAILURE
from unisono.launchers.worker.kept_failure import kept_failure
from unisono.observe.compare import changed_ledger
from unisono.observe.damage import describe_damage, describe_metric_damage, is_record, read_steps
from unisono.observe.ledger import read_lines
from unisono.observe.metric_lines import NAME as METRICS
from unisono.observe.phases import StepPhases, has_begun, read_with_damage
from unisono.observe.run_json import read_object
from unisono.observe.run_place import BEGUN, no_run, runs_in
from unisono.observe.speed import OWN, seconds_within, speed_of
from unisono.scaling.study import STEP_PHASES
from unisono.system.processes import boot_id, look_at
from unisono.system.words import counted

_CHECKPOINT = re.compile(r"step-(\d+)\.[0-9a-f]+")  # what `checkpoint.store`, which loads torch, calls a whole one
_OF_A_RESULT = (*BEGUN, "scaling.json")  # what has one of these is no folder of runs
_SILENT_S = 30.0
_CHANGES = {"deaths": "died", "joins": "joined", "released": "left"}


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One launch of the run directory."""

    number: int  #: As counted by the directory.
    world_size: int  #: Its ranks.
    first_step: int  #: The first step it recorded.
    last_step: int  #: The last one.
    reached: int  #: The last step in the ledger when it began; 0: there was none, or nobody has told.
    began_s: float  #: When its first step began, in seconds since 1970.
    ended_s: float  #: When its last step ended.


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """What a run has left."""

    path: Path  #: Its directory.
    name: str  #: To show.
    score: dict[str, Any]  #: ``score.json``.
    environment: dict[str, Any]  #: ``environment.json``; empty where there is none.
    result: dict[str, Any]  #: ``result.json``; empty where the run has not ended.
    ledger: list[dict[str, Any]]  #: Lines by step.
    logged: list[dict[str, Any]]  #: Lines of ``metrics.jsonl``.
    phases: list[StepPhases]  #: Records of all launches; a step done twice appears for each.
    launches: list[Launch]  #: In order.
    changed: str | None = None  #: Which line of the ledger is not the one that was written, in words; None: none is.
    damage: str | None = None  #: Where its files are damaged, and what that means, in words; None: nowhere.

    @property
    def state(self) -> str:
        """As `state_of` says."""
        step = self.ledger[-1]["step"] if self.ledger else 0
        num_steps = max((record.last for record in self.phases), default=0) or None
        silent_s = time.time() - max((launch.ended_s for launch in self.launches), default=-math.inf)
        return state_of(self.path, self.result, step, num_steps, silent_s)

    @property
    def losses(self) -> list[tuple[float, float]]:
        """(step, mean loss of its batch)."""
        return [(line["step"], float.fromhex(line["loss"])) for line in self.ledger]

    def final_phases(self) -> dict[int, list[StepPhases]]:
        """Return for each step the records of the launch that did it last, by rank."""
        found: dict[int, list[StepPhases]] = {}
        newest: dict[int, int] = {}
        for record in self.phases:  # by launch
            if newest.get(record.step) != record.launch:
                newest[record.step], found[record.step] = record.launch, []
            found[record.step].append(record)
        return dict(sorted(found.items()))

    def last_world(self) -> list[list[StepPhases]]:
        """Return what `final_phases` does, of the launches with as many workers as the last one began with."""
        numbers = {launch.number for launch in self.launches if launch.world_size == self.launches[-1].world_size}
        return [records for records in self.final_phases().values() if records[0].launch in numbers]

    def workers(self) -> list[tuple[Launch, int, list[list[StepPhases]]]]:
        """Return the stretches of steps that equally many workers have recorded, by launch: (launch, workers, steps).

        A worker that was killed has not written its last second. So the end of a launch that was killed, where some of
        them have written more than others, says nothing, and is left out.
        """
        found = []
        for launch in self.launches:
            steps: dict[int, list[StepPhases]] = {}
            for record in (record for record in self.phases if record.launch == launch.number):
                steps.setdefault(record.step, []).append(record)
            ordered = [records for _, records in sorted(steps.items())]
            stretches = [(launch, size, [*same]) for size, same in itertools.groupby(ordered, len)]
            is_ended = launch is self.launches[-1] and bool(self.result)
            while not is_ended and len(stretches) > 1 and stretches[-1][1] < stretches[-2][1]:
                stretches.pop()
            found += stretches
        return found

    def throughput(self) -> list[tuple[float, float]]:
        """Return (step, samples per second within it)."""
        sizes = {line["step"]: line["num_samples"] for line in self.ledger}
        return [
            (step, speed.within)
            for step, records in self.final_phases().items()
            if step in sizes
            and (seconds := max(seconds_within(each.ns) for each in records) / 1e9)
            and (speed := speed_of([(sizes[step], seconds, seconds)]))
        ]

    def led(self) -> list[StepPhases]:
        """Return the records of the rank that led in each step: another one, where the first has died."""
        lowest: dict[tuple[int, int], int] = {}
        for record in self.phases:
            place = record.launch, record.step
            lowest[place] = min(record.rank, lowest.get(place, record.rank))
        return [record for record in self.phases if record.rank == lowest[record.launch, record.step]]

    def worlds(self) -> str:
        """Return the numbers of workers of the launches, in words."""
        sizes = [launch.world_size for launch in self.launches] or [self.result.get("world_size", "?")]
        return ", then ".join(str(size) for size in dict.fromkeys(sizes))

    def changes(self) -> str:
        """Return how many workers came and went while the last launch ran, in brackets; empty where none did."""
        found = {word: self.result.get(name) for name, word in _CHANGES.items()}
        told = ", ".join(f"{number} {word}" for word, number in found.items() if number)
        return f" ({told})" if told else ""

    def metrics(self) -> dict[str, list[tuple[float, float]]]:
        """Return (step, value) by name, as a trainer has logged them."""
        found: dict[str, list[tuple[float, float]]] = {}
        for line in self.logged:
            for name, value in line["values"].items():
                found.setdefault(name, []).append((line["step"], float(value)))
        return found


def own_seconds(record: StepPhases) -> float:
    """Return how long a rank worked by itself in a step, for one replica where it is known how many it has computed."""
    return sum(record.ns.get(phase, 0) for phase in OWN) / 1e9 / max(1, record.replicas)


def by_rank(steps: Sequence[list[StepPhases]]) -> dict[int, dict[str, float]]:
    """Return each rank's median seconds of a step by phase, by rank; one that has joined others has its own number."""
    mine: dict[int, list[StepPhases]] = {}
    for record in (record for records in steps for record in records):
        mine.setdefault(record.rank, []).append(record)
    return {
        rank: {phase: statistics.median(record.ns.get(phase, 0) for record in found) / 1e9 for phase in STEP_PHASES}
        for rank, found in sorted(mine.items())
    }


def holder_of(path: Path) -> dict[str, Any]:
    """Return who holds a run directory, where that is a process of this machine; it may have died."""
    try:
        held = json.loads((path / "run.lock").read_text())
        return held if held["boot_id"] == boot_id() and {"pid", "start_ticks"} <= held.keys() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def is_held(path: Path) -> bool:
    """Say whether a living process of this machine trains in a run directory."""
    holder = holder_of(path)
    return bool(holder) and look_at(int(holder["pid"])).start_ticks == holder["start_ticks"]


def state_of(path: Path, result: Mapping[str, Any], step: int, num_steps: int | None, silent_s: float) -> str:
    """Return how a run is, for the live view and the report alike.

    Args:
        path: Its directory.
        result: What ``result.json`` holds; that of an earlier launch counts until a later one has done a step.
        step: The last one in the ledger.
        num_steps: The step that is to be the last; None: unknown.
        silent_s: Seconds since a step was written; infinite where none was.

    Returns:
        ``finished``, ``stopped``, ``training``, ``starting``, ``ended`` (without a result) or ``silent``.
    """
    lives, steps = is_held(path), result.get("steps", step)
    is_done = num_steps is not None and step >= num_steps == result.get("steps")
    # The program may do something else when its run is finished.
    if result and (is_done or (not lives and not (isinstance(steps, int) and steps < step))):
        return "finished" if result.get("finished", True) else "stopped"
    if lives:
        return "training" if step else "starting"
    if holder_of(path):
        return "ended"
    return "training" if silent_s < _SILENT_S else "silent"


def resumed_after(path: Path, number: int, first: int) -> int:
    """Return after which step the launch that trains now has gone on; 0: it began at the first one.

    Args:
        path: Of the run.
        number: Of the newest launch that has recorded a step.
        first: The first step which that has recorded; 0: none.
    """
    token = holder_of(path).get("token", number)
    if token == number and first:
        return first - 1
    return newest_checkpoint(path) if token > 1 else 0  # it writes once a second


def how_it_ended(path: Path, step: int) -> str:
    """Return how the newest launch of a run has ended that nobody trains and that has no result, in one sentence.

    Args:
        path: Of the run.
        step: The last one in the ledger.
    """
    number = int(holder_of(path).get("token", 0))
    who = f"launch {number}" if number > 1 else "it"
    early = " before its first step" if not step or (number and not has_begun(path, number)) else ""
    if failure := kept_failure(path, number):
        more = f". Its traceback is in {path / FAILURE}" if failure.traceback else ""
        return f"{who} failed{early}: {failure.spell()}{more}"
    return f"{who} ended{early}, not finished: killed, or its error is in the output of its command"


def check_run(path: Path) -> None:
    """Refuse what is no run directory."""
    if not (path / "score.json").exists():
        raise no_run(path)


def each_run(paths: Sequence[Path], most: int | None = None) -> tuple[list[Path], list[str]]:
    """Return `paths` with the runs of each folder of runs in its place, by name; and a line on each such folder.

    Args:
        paths: What was asked for. A folder of runs is no run, and has some in it; none is looked for deeper.
        most: Of a folder only so many are taken, the newest.
    """
    found, told = [], []
    for path in paths:
        runs = [] if any((path / name).exists() for name in _OF_A_RESULT) else runs_in(path, BEGUN)
        if runs:
            cut = "" if most is None or len(runs) <= most else f", of which the {most} newest are shown"
            told.append(f"{path} holds {counted(len(runs), 'run')}{cut}")
        found += sorted(runs[:most]) or [path]
    return found, told


def read_run(path: Path) -> RunView:
    """Return a run directory's content."""
    files = {name: read_object(path / f"{name}.json") for name in ("score", "environment", "result")}
    try:
        phases, bad = read_with_damage(path)
        damage = " ".join(filter(None, [damage_of(path), bad])) or None
        view = RunView(
            path=path, name=path.resolve().name, score=files["score"], environment=files["environment"],
            result=files["result"], ledger=read_steps(path / "ledger.jsonl"),
            logged=[*itertools.takewhile(is_record, read_lines(path / METRICS))], phases=phases,
            launches=list(_launches(phases)), changed=changed_ledger(path, files["result"]), damage=damage,
        )  # fmt: skip
        view.losses, view.metrics(), view.throughput()
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise ConfigError(f"{path} holds files that no run writes: {error!r}. Hint: train again.") from error
    return view


def strategy_in(score: Mapping[str, Any]) -> str:
    """Return the name of the strategy that a score tells; ``?`` where it tells none."""
    found = score.get("strategy")
    return str(found.get("name", "?")) if isinstance(found, dict) else "?"


def newest_checkpoint(path: Path) -> int:
    """Return the step of the newest checkpoint of a run directory, by its name; 0: there is none."""
    names = (_CHECKPOINT.fullmatch(file.name) for file in (path / "checkpoints").glob("step-*"))
    return max((int(match[1]) for match in names if match), default=0)


def damage_of(path: Path) -> str | None:
    """Return where ledger and metrics of a run that nobody trains are damaged, and what to do; None: nowhere."""
    found = describe_damage(path / "ledger.jsonl", newest_checkpoint(path)), describe_metric_damage(path / METRICS)
    return " ".join(filter(None, found)) or None


def _launches(phases: list[StepPhases]) -> Iterator[Launch]:
    for number in sorted({record.launch for record in phases}):
        mine = [record for record in phases if record.launch == number]
        yield Launch(
            number=number, world_size=mine[0].world_size, first_step=min(record.step for record in mine),
            last_step=max(record.step for record in mine), reached=max(record.reached for record in mine),
            began_s=min(record.began_ns for record in mine) / 1e9,
            ended_s=max(record.began_ns + sum(record.ns.values()) for record in mine) / 1e9,
        )  # fmt: skip
