"""Check a finished run: that its files agree with each other, and that steps drawn at random lead where it says.

The draw is the auditor's, made after the run has committed itself (`unisono.train.run_directory.commitment`): who has
forged a fraction f of the segments escapes K draws with a probability of at most (1 - f)^K.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unisono.checkpoint.format import fingerprint_of
from unisono.checkpoint.manifest import STATE_FILE
from unisono.checkpoint.store import list_steps, read, verify
from unisono.determinism.seeding import mix
from unisono.errors import CheckpointError, ConfigError, WorkerFailed
from unisono.experiments.past.replay import read_score, recompute, step_of
from unisono.experiments.trials import Tell, silent
from unisono.observe.compare import diff
from unisono.observe.damage import changed_line, describe_damage, read_steps
from unisono.observe.run_json import read_object
from unisono.system.directory import Directory
from unisono.train.run_directory.commitment import FILE_NAME, describe_commitment, is_whole
from unisono.train.run_directory.fork import FILE_NAME as FORK
from unisono.train.run_directory.program import changed_files, read_program

FRACTIONS = (0.01, 0.05, 0.1, 0.25, 0.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Steps between two states that the run has kept."""

    start: int  #: The step of the checkpoint that they begin from; 0: the beginning of the run.
    last: int  #: The last step.
    is_drawn: bool = False  #: Whether it was computed again.
    problem: str | None = None  #: What was found wrong with it; None: nothing.


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """What came of an audit."""

    run: str  #: The run directory.
    commitment: str | None  #: The SHA-256 that the run has committed itself to; None: it has none.
    is_published: bool  #: Whether it was compared with one that was given.
    fingerprint: str | None  #: Of the final weights.
    steps: int  #: Of the run.
    problems: list[str]  #: What is wrong with the files, without anything being computed.
    segments: list[Segment]  #: All of the run's, in order.
    drifts: list[str]  #: Where the environment changed during the run, which was allowed, and is no forgery.
    #: By fraction of the segments that a forger has changed: the probability that this audit would have found one.
    chances: dict[str, float] = field(default_factory=dict)

    @property
    def is_passed(self) -> bool:
        """Whether nothing was found."""
        return not self.problems and all(segment.problem is None for segment in self.segments)

    @property
    def steps_computed(self) -> int:
        """How many steps were computed again."""
        return sum(segment.last - segment.start for segment in self.segments if segment.is_drawn)


def cut(anchors: Sequence[int], steps: int) -> list[Segment]:
    """Return the segments of a run whose states after the steps `anchors` are there; 0, its beginning, always is."""
    ends = sorted({0, *(anchor for anchor in anchors if 0 < anchor < steps), steps})
    return [Segment(start=a, last=b) for a, b in itertools.pairwise(ends)]


def draw(count: int, wanted: int, seed: int) -> list[int]:
    """Return `wanted` of `count` places (all where that is more), ascending: a function of the seed."""
    return sorted(sorted(range(count), key=lambda place: mix(seed, "audit", place))[:wanted])


def chance(fraction: float, drawn: int, count: int) -> float:
    """Return the probability that a forgery of a fraction of `count` segments has one among `drawn`."""
    forged = max(1, round(fraction * count))
    missed = 1.0
    for place in range(drawn):
        missed *= max(0, count - forged - place) / (count - place)
    return 1 - missed


def audit(
    directory: str, args: Sequence[str] = (), *, segments: int = 3, seed: int = 0, commitment: str | None = None,
    script: str | None = None, workers: str = "1", data: str | None = None, allow_drift: bool = False,
    tell: Tell = silent,
) -> Audit:  # fmt: skip
    """Audit a run; nothing in its directory is touched.

    Args:
        directory: The run directory.
        args: The script's arguments, in place of the recorded ones.
        segments: How many are drawn and computed again.
        seed: Of the draw. Choose it after the run has ended.
        commitment: The hash that was published when the run ended.
        script: The program, in place of the recorded one.
        workers: Number of processes, or ``auto``.
        data: Where a recipe's data is.
        allow_drift: Although software, CPU or the program's files differ from the run's.
        tell: Takes a line about what is going on.

    Raises:
        ConfigError: No finished run, or a wrong setting.
    """
    home = Path(directory)
    read_score(home)
    if read_object(home / FORK):
        raise ConfigError(f"{home} is a fork. Hint: audit its parent; `unisono replay` checks the fork's own steps.")
    result = read_object(home / "result.json")
    steps = result.get("steps")
    if not isinstance(steps, int) or steps < 1 or result.get("finished") is not True:
        raise ConfigError(f"expected a run that has ended, got {home}, whose result.json says no such thing.")
    there = read_object(home / FILE_NAME)
    problems = _problems(home, result, there, commitment)
    program = read_program(home)
    if script is None and program is not None and not allow_drift:
        problems += [f"the program: {line}" for line in changed_files(program)]
    found = cut(_anchors(home, problems), steps)
    drawn = draw(len(found), segments, seed)
    total = sum(found[place].last - found[place].start for place in drawn)
    is_computable = not any(problem.startswith(("the program:", "the ledger:")) for problem in problems)
    if is_computable:
        tell(f"{total} of {steps} steps to compute, {len(drawn)} of {len(found)} segments, drawn with seed {seed}")
    how: dict[str, Any] = {"script": script, "workers": workers, "data": data, "allow_drift": allow_drift}
    for place in drawn if is_computable else ():
        one = found[place]
        tell(f"steps {one.start + 1} to {one.last} ...")
        problem = _check(home, one, args, how, result)
        found[place] = Segment(start=one.start, last=one.last, is_drawn=True, problem=problem)
    count = sum(segment.is_drawn for segment in found)
    return Audit(
        run=str(home), commitment=there.get("sha256"), is_published=commitment is not None,
        fingerprint=result.get("fingerprint"), steps=steps, problems=problems, segments=found,
        drifts=_drifts(there),
        chances={f"{fraction:g}": round(chance(fraction, count, len(found)), 6) for fraction in FRACTIONS},
    )  # fmt: skip


def _drifts(commitment: dict[str, Any]) -> list[str]:
    found = commitment.get("drifted")
    lists = [lines for lines in found if isinstance(lines, list)] if isinstance(found, list) else []
    return [str(line) for lines in lists for line in lines]


def _problems(home: Path, result: dict[str, Any], there: dict[str, Any], published: str | None) -> list[str]:
    """Return in what the files of a run contradict each other, or what was published."""
    told = []
    ledger, steps = home / "ledger.jsonl", result["steps"]
    lines = read_steps(ledger)
    if (damage := describe_damage(ledger, steps)) is not None:
        told.append(f"the ledger: {damage}")
    elif [line["step"] for line in lines] != list(range(1, steps + 1)):
        told.append(f"the ledger: it has {len(lines)} steps, the result has {steps}")
    elif changed := changed_line(ledger, {steps: str(result.get("ledger_head"))}):
        told.append(f"the ledger: {changed}")
    elif lines[-1]["epoch"] + 1 < result.get("epochs", 1):
        told.append(f"the ledger: it ends in epoch {lines[-1]['epoch'] + 1}, the result has {result['epochs']} epochs")
    if not there:
        told.append(f"the commitment: there is no {FILE_NAME}")
        return told
    if not is_whole(there):
        told.append(f"the commitment: {FILE_NAME} has been changed")
    if published is not None and there.get("sha256") != published:
        told.append(f"the commitment: {published} was published, {FILE_NAME} has {there.get('sha256')}")
    with Directory.open(home) as place:
        now = describe_commitment(
            place, steps=steps, head=str(result.get("ledger_head")), fingerprint=str(result.get("fingerprint"))
        )
    kept = {step: parts for step, parts in there.get("checkpoints", {}).items() if step in now["checkpoints"]}
    others = diff({**there, "checkpoints": kept, "sha256": ""}, {**now, "sha256": ""})
    told += [f"the commitment: {line}" for line in others]
    return told


def _anchors(home: Path, problems: list[str]) -> list[int]:
    """Return the steps of valid checkpoints; what is wrong with the others is added to `problems`."""
    found = []
    for step, path in list_steps(home / "checkpoints"):
        try:
            manifest = verify(path)
        except CheckpointError as error:
            problems.append(f"a checkpoint: {error}")
            continue
        if lines := diff(manifest.facts.score, read_score(home)) if manifest.facts.score else []:
            problems.append(f"a checkpoint: {path.name} is of another run: {'; '.join(lines)}")
            continue
        found.append(step)
    return found


def _check(home: Path, one: Segment, args: Sequence[str], how: dict[str, Any], result: dict[str, Any]) -> str | None:
    """Compute a segment again; return what is wrong with it, or None."""
    starts = {step_of(path): path for _, path in list_steps(home / "checkpoints")}
    reached: dict[str, str] = {}
    try:
        done = recompute(
            home, starts.get(one.start), one.last, args, **how, tell=lambda _: None,
            look=lambda out: reached.update(_state(out, one.last)),
        )  # fmt: skip
    except (ConfigError, WorkerFailed) as error:
        return f"it cannot be computed: {json.dumps(str(error))[1:-1]}"
    if done.first_other is not None:
        return f"step {done.first_other} is another than in the ledger: {', '.join(done.differing)}"
    if one.last in starts:
        stored = _state(home, one.last)
        if others := [name for name in stored | reached if stored.get(name) != reached.get(name)]:
            return f"the checkpoint of step {one.last} is not where the steps lead: {', '.join(others)}"
    if one.last == result["steps"] and reached["model"] != result.get("fingerprint"):
        return "the result has another fingerprint than the weights that the steps lead to"
    return None


def _state(home: Path, step: int) -> dict[str, str]:
    """Return a hash of each part of the state after a step, ``model`` is the fingerprint; and its plain values."""
    path = next((path for other, path in list_steps(home / "checkpoints") if other == step), None)
    if path is None:
        return {}
    _, state = read(path)
    plain = {f"{STATE_FILE}: {name}": json.dumps(value, sort_keys=True) for name, value in state.values.items()}
    return {name: fingerprint_of(tensors) for name, tensors in state.tensors.items()} | plain
