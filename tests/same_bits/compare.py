"""What two run directories say of their steps, and where they first differ (pure but for reading the files)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

LEDGER = "ledger.jsonl"
STEPS = (LEDGER, "detail.jsonl", "metrics.jsonl")
"""Files with a line a step; the first is always there."""
RESULT = ("fingerprint", "finished", "steps", "epochs", "replicas", "seed", "strategy", "world_size", "metrics")
"""What of ``result.json`` is no time, size or history."""
CAUSES = (
    "step",
    "epoch",
    "num_samples",
    "samples",
    "indices",
    "weights",
    "loss",
    "losses",
    "gradient",
    "gradients",
    "lr",
)
"""Fields in the order in which one leads to the next; others come after them."""
ABSENT = "absent"


class Difference(NamedTuple):
    """Where two runs differ.

    Attributes:
        run: The run directory within the job; empty where the job has one.
        step: None where it is no matter of a step.
        field: As ``gradients.0.weight`` or ``result.fingerprint``.
        base: Value in one tree, as text.
        present: Value in the other.
    """

    run: str
    step: int | None
    field: str
    base: str
    present: str

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.run, "" if self.step is None else f"step {self.step}") if part)
        return f"{where}{': ' if where else ''}{self.field}: {self.base} -> {self.present}"


def compare_jobs(base: Path, present: Path) -> list[Difference]:
    """Return the differences of all run directories below two directories, each run's first step first."""
    runs = [{path.parent.relative_to(side).as_posix() for path in side.rglob(LEDGER)} for side in (base, present)]
    if not runs[0] | runs[1]:
        return [Difference("", None, "run directories", "none", "none")]
    differences = []
    for run in sorted(runs[0] | runs[1]):
        name = "" if run == "." else run
        if run in runs[0] & runs[1]:
            differences += compare_runs(base / run, present / run, name)
        else:
            words = ["there" if run in side else ABSENT for side in runs]
            differences.append(Difference(name, None, "run directory", *words))
    return differences


def compare_runs(base: Path, present: Path, name: str = "") -> list[Difference]:
    """Return the differences of two run directories: those of the first step that differs, then result and score."""
    texts = [{file: _read(side / file) for file in STEPS} for side in (base, present)]
    found = [first_difference(texts[0][file], texts[1][file]) for file in STEPS]
    steps = [step for step, _ in filter(None, found) if step is not None]
    differences = [
        Difference(name, step, field, *values)
        for step, fields in filter(None, found)
        if step == min(steps, default=None)
        for field, *values in fields
    ]
    differences.sort(key=lambda difference: _order(difference.field))
    for file, names in (("result", RESULT), ("score", None)):
        sides = [_load(side / f"{file}.json") for side in (base, present)]
        if not all("modules" in side for side in sides):  # no score of before has them
            sides = [{key: value for key, value in side.items() if key != "modules"} for side in sides]
        kept = [{key: value for key, value in side.items() if names is None or key in names} for side in sides]
        differences += [
            Difference(name, None, f"{file}.{field}", *values) for field, *values in fields_that_differ(*kept)
        ]
        if file == "result" and not any("fingerprint" in side for side in kept):  # one alone differs already
            differences.append(Difference(name, None, "result.fingerprint", ABSENT, ABSENT))
    return differences


def first_difference(base: str, present: str) -> tuple[int | None, list[tuple[str, str, str]]] | None:
    """Return the first step at which two files of steps differ, and its fields, causes first; None where none does.

    Args:
        base: Lines of JSON with a ``step`` each.
        present: The same of the other tree.
    """
    ours, theirs = _lines(base), _lines(present)
    for index in range(max(len(ours), len(theirs))):
        first = ours[index] if index < len(ours) else {}
        second = theirs[index] if index < len(theirs) else {}
        fields = fields_that_differ(first, second)
        if fields:
            step = first.get("step", second.get("step"))
            if not first or not second:
                fields = [("line", "there" if first else ABSENT, "there" if second else ABSENT)]
            return step, fields
    return None


def fields_that_differ(base: dict[str, Any], present: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return name and both values of each field that differs, causes first; times are left out."""
    first, second = dict(_flat(base)), dict(_flat(present))
    names = sorted(
        (name for name in {**first, **second} if first.get(name, ABSENT) != second.get(name, ABSENT)), key=_order
    )
    return [(name, first.get(name, ABSENT), second.get(name, ABSENT)) for name in names]


def num_steps(folder: Path) -> int:
    """Return how many lines all ledgers below a directory have."""
    return sum(len(path.read_text().splitlines()) for path in folder.rglob(LEDGER))


def fingerprints(folder: Path) -> list[str]:
    """Return those of all runs below a directory, in the order of their names."""
    return [str(_load(path.with_name("result.json")).get("fingerprint")) for path in sorted(folder.rglob(LEDGER))]


def _order(name: str) -> tuple[int, int]:
    cause = name.partition(".")[0]
    return (CAUSES.index(cause) if cause in CAUSES else len(CAUSES)), name == "previous"


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Give every plain value below nested ones, in JSON's text: the sign of zero and the kind of a number show."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            if not _is_time(key):
                yield from _flat(part, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and value:
        for index, part in enumerate(value):
            yield from _flat(part, f"{name}.{index}")
    else:
        yield name, json.dumps(value)


def _is_time(key: str) -> bool:
    return key.endswith(("_s", "_ns", "per_s"))


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(_read(path) or "{}")
    return loaded
