"""The first difference between two runs: in which step, and in what (reads files, imports no torch).

Within a step, causes come before effects: the weights it started from, its samples, its random numbers, the loss,
the gradient, the learning rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unisono.collectives.placement import cut
from unisono.data.plans.batch_schedule import schedule_in
from unisono.data.sampler import ExactSampler
from unisono.determinism.seeding import mix
from unisono.errors import ConfigError
from unisono.observe.compare import changed_ledger, diff, said_now
from unisono.observe.damage import damaged_from, read_steps
from unisono.observe.ledger import hash_samples, read_lines
from unisono.observe.run_json import read_object
from unisono.report.run_view import check_run

ORDER = (
    "epoch", "weights", "num_samples", "samples", "generator seed", "updates", "samples_weight", "loss", "gradient",
    "lr",
)  # fmt: skip
_SHOWN = 16
_HINT = (
    "Hint: to name {what}, run both again with detail=True (unisono train --detail); "
    "it adds a file beside the ledger and changes no bit."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDiff:
    """What differs between two runs."""

    equal: bool  #: Scores, ledgers, fingerprints and metrics agree, and the ledgers are those that were written.
    step: int | None = None  #: The first differing step (1-based); None where all common steps agree.
    #: What differed first in it: one of `ORDER`; ``length`` where one run ends before it; ``final weights`` where all
    #: steps agree but not what came out.
    first: str | None = None
    update: str | None = None  #: Of several optimizers the one whose update in this step is the first that differs.
    fields: list[str] = field(default_factory=list)  #: All that differs in that step, causes first.
    notes: list[str] = field(default_factory=list)  #: What is known about each of them, for people.
    replicas: list[int] | None = None  #: Whose losses differ; None without detail.
    samples: list[int] | None = None  #: The samples that differ, or those of `replicas`; None where unknown.
    #: Names whose weights (or else gradients) differ, in the model's order; None without detail.
    parameters: list[str] | None = None
    score: list[str]  #: One line per differing entry.
    environment: list[str]  #: One line per differing entry; an explanation, never a difference of its own.
    metrics: list[str]  #: One line per differing metric; names that end in ``_s`` are times and do not count.
    fingerprints: tuple[str | None, str | None]  #: Of both runs; None where a run has no result yet.
    hint: str = ""  #: What to do to know more; empty where there is nothing more.
    #: Ledgers whose lines are not those that were written, in words; what they tell is not the runs'.
    damage: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run's files."""

    score: dict[str, Any]
    environment: dict[str, Any]
    result: dict[str, Any]
    ledger: list[dict[str, Any]]
    detail: dict[int, dict[str, Any]]

    def indices(self, line: Mapping[str, Any]) -> list[int] | None:
        """Return the samples of a ledger line: as recorded, or computed from the score if their hash agrees."""
        if line["step"] in self.detail:
            found: list[int] = self.detail[line["step"]]["indices"]
            return found
        data = self.score.get("data") or {}
        try:
            sampler = ExactSampler(
                data["num_samples"], schedule_in(self.score), self.score["replicas"],
                seed=self.score["seed"], shuffle=data["shuffle"], last=data.get("last", "short"),
            )  # fmt: skip
        except (KeyError, TypeError, ConfigError):  # another program's score
            return None
        batch = sampler.batch(line["step"])
        return batch.tolist() if hash_samples(batch) == line["samples"] else None


def compare_runs(left: Path, right: Path) -> RunDiff:
    """Return where the runs in two directories part."""
    ours, theirs = _read(left), _read(right)
    left_score, right_score = ({n: v for n, v in said_now(run.score).items() if n != "fork"} for run in (ours, theirs))
    score = diff(left_score, right_score)  # that one is a fork of the other is no difference
    environment = diff(ours.environment, theirs.environment)
    metrics = diff(_untimed(ours.result.get("metrics", {})), _untimed(theirs.result.get("metrics", {})))
    fingerprints = (ours.result.get("fingerprint"), theirs.result.get("fingerprint"))
    damage = [found for path, run in ((left, ours), (right, theirs)) if (found := changed_ledger(path, run.result))]
    common: dict[str, Any] = {
        "score": score, "environment": environment, "metrics": metrics, "fingerprints": fingerprints, "damage": damage,
    }  # fmt: skip
    for old, new in zip(ours.ledger, theirs.ledger, strict=False):
        if old != new:
            return RunDiff(equal=False, **_explain(ours, theirs, old, new), **common)
    done = min(len(ours.ledger), len(theirs.ledger))
    if len(ours.ledger) != len(theirs.ledger):
        which = left if done == len(ours.ledger) else right
        note = f"{which} ends after step {done}; all steps up to there are equal"
        if bad := damaged_from(which / "ledger.jsonl"):
            note = f"{which}: the ledger is damaged from its line {bad} on; all steps before are equal"
        return RunDiff(equal=False, step=done + 1, first="length", fields=["length"], notes=[note], **common)
    if fingerprints[0] != fingerprints[1]:
        note = (
            f"one of the runs has no result yet; all {done} steps are equal" if None in fingerprints else
            f"all {done} steps are equal, so the last update or something after it made the difference"
        )  # fmt: skip
        return RunDiff(equal=False, first="final weights", fields=["final weights"], notes=[note], **common)
    return RunDiff(equal=not (score or metrics or damage), **common)


def _explain(ours: _Run, theirs: _Run, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    step = old["step"]
    ids = ours.indices(old), theirs.indices(new)
    place, before, update = _place(old, new), None, None
    if place is not None:
        before, update = old["updates"][place - 1]["name"] if place else None, old["updates"][place]["name"]
        old, new = _at_update(old, place), _at_update(new, place)
    fields = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    seeds = ours.score.get("seed"), theirs.score.get("seed")
    if seeds[0] != seeds[1]:
        fields.append("generator seed")
    fields.sort(key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    known: dict[str, Any] = {"step": step, "first": fields[0], "fields": fields}
    known["update"] = None if "updates" in fields else update
    details = [
        found if found is None or place is None else (found["updates"][place : place + 1] or [None])[0]
        for found in (ours.detail.get(step), theirs.detail.get(step))
    ]
    notes: list[str] = []
    for name in fields:
        if name == "weights":
            notes.append(f"weights: {_since(step, ours.ledger, before)}{_named(details, 'weights', known)}")
        elif name == "samples":
            notes.append(f"samples: {_swapped(*ids, known)}")
        elif name == "generator seed":
            keys = [f"{mix(seed, 'replica', step, 0):016x}" if isinstance(seed, int) else "?" for seed in seeds]
            notes.append(f"generator seed: of replica 0 {keys[0]} -> {keys[1]}")
        elif name == "loss":
            a, b = float.fromhex(old["loss"]), float.fromhex(new["loss"])
            notes.append(f"loss: {a!r} -> {b!r}{_replicas(details, ids[0], known)}")
        elif name == "gradient":
            notes.append(f"gradient: {old[name]} -> {new[name]}{_named(details, 'gradients', known)}")
        else:
            notes.append(f"{name}: {_plain(old.get(name))} -> {_plain(new.get(name))}")
    missing = {"weights": "the parameter", "loss": "the replica and the parameter", "gradient": "the parameter"}
    if None in details and fields[0] in missing:
        known["hint"] = _HINT.format(what=missing[fields[0]])
    return known | {"notes": notes}


def _place(old: Mapping[str, Any], new: Mapping[str, Any]) -> int | None:
    """Return which update of a step is the first that differs, or the last that both runs did; None: none is told."""
    pairs = [*zip(old.get("updates", ()), new.get("updates", ()), strict=False)]
    return next((place for place, (one, other) in enumerate(pairs) if one != other), len(pairs) - 1) if pairs else None


def _at_update(line: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Return what a line says of one update in place of what it says of all."""
    own = {name: value for name, value in line["updates"][place].items() if name != "name"}
    return {**line, **own, "updates": [update["name"] for update in line["updates"]]}


def _since(step: int, ledger: Sequence[Mapping[str, Any]], before: str | None) -> str:
    if before is not None:
        return f"loss and gradient of {before!r} just before were equal, so its update or something after it differed"
    if step == ledger[0]["step"]:
        return "the runs began with different ones"
    return f"samples, loss and gradient of step {step - 1} were equal, so its update or something after it differed"


def _named(details: Sequence[Mapping[str, Any] | None], kind: str, known: dict[str, Any]) -> str:
    """Return the names whose checksums differ, for people, and keep those of the first kind that does."""
    if details[0] is None or details[1] is None:
        return ""
    old, new = details[0][kind], details[1][kind]
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    known.setdefault("parameters", names)
    return f"; first in {names[0]!r} ({len(names)} of {len({**old, **new})})" if names else ""


def _swapped(old: list[int] | None, new: list[int] | None, known: dict[str, Any]) -> str:
    if old is None or new is None:
        return "their numbers or their order differ"
    places = [place for place, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]]
    known["samples"] = sorted(set(old) ^ set(new))
    if not places:
        return f"{len(old)} -> {len(new)} samples"
    shown = ", ".join(f"{old[place]} -> {new[place]}" for place in places[:4])
    more = " ..." if len(places) > 4 else ""
    return f"{len(places)} of {len(old)} places differ, first place {places[0]}: {shown}{more}"


def _replicas(details: Sequence[Mapping[str, Any] | None], ids: list[int] | None, known: dict[str, Any]) -> str:
    """Return whose losses differ and their samples, for people."""
    if details[0] is None or details[1] is None or len(details[0]["losses"]) != len(details[1]["losses"]):
        return ""
    pairs = zip(details[0]["losses"], details[1]["losses"], strict=True)
    known["replicas"] = [replica for replica, (old, new) in enumerate(pairs) if old != new]
    if ids is None or "samples" in known or not known["replicas"]:
        return f"; replicas {known['replicas']}"
    parts = cut(len(ids), len(details[0]["losses"]))
    known["samples"] = [ids[place] for replica in known["replicas"] for place in parts[replica]]
    shown = ", ".join(map(str, known["samples"][:_SHOWN])) + (" ..." if len(known["samples"]) > _SHOWN else "")
    return f"; replicas {known['replicas']}, samples {shown}"


def _plain(value: Any) -> str:
    return repr(float.fromhex(value)) if isinstance(value, str) and value.lstrip("-").startswith("0x") else repr(value)


def _untimed(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if not name.endswith("_s")}


def _read(path: Path) -> _Run:
    check_run(path)
    files = {name: read_object(path / f"{name}.json") for name in ("score", "environment", "result")}
    detail = {line["step"]: line for line in read_lines(path / "detail.jsonl")}
    ledger = read_steps(path / "ledger.jsonl")
    return _Run(ledger=ledger, detail=detail, **files)
