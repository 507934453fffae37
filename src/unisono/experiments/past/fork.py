"""A new run that shares its history with another up to a step, and differs from then on in what is said."""

import json
import shutil
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from unisono.checkpoint.manifest import FILE_NAME as MANIFEST
from unisono.checkpoint.manifest import encode
from unisono.checkpoint.store import list_steps, verify
from unisono.errors import ConfigError
from unisono.experiments.job import plan, run_in
from unisono.experiments.past.replay import (
    called_with,
    nearest_checkpoint,
    program_of,
    read_score,
    recompute,
    step_of,
    workers_of,
)
from unisono.experiments.trials import Tell, run_script, silent
from unisono.observe.damage import described_line, read_steps
from unisono.observe.run_json import read_object
from unisono.options.fields import options_of
from unisono.strategies.catalog import CATALOG
from unisono.system.directory import Directory
from unisono.system.hints import nearest
from unisono.system.owners import adopt
from unisono.train.run_directory.fork import FILE_NAME
from unisono.train.run_directory.program import read_program

_OF_PARENT = ("optimizer", "optimizers", "objective")
_OF_THE_PLACE = ("recipe", "out", "cache")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fork:
    """What came of a fork."""

    out: str  #: Its run directory.
    step: int  #: The last step that it shares with its parent.
    parent: str  #: The parent's run directory.
    result: dict[str, Any]  #: Its ``result.json``.


def fork(
    directory: str, out: str, args: Sequence[str] = (), *, step: int, changes: Sequence[str] = (),
    script: str | None = None, workers: str = "1", data: str | None = None, allow_drift: bool = False,
    tell: Tell = silent,
) -> Fork:  # fmt: skip
    """Begin a run after a step of another one, and train it to its end; a fork that is there already goes on.

    Args:
        directory: The parent's run directory; nothing in it is touched.
        out: The fork's, new or empty.
        args: A script's arguments, in place of the recorded ones.
        step: The last one to share.
        changes: Of a recipe's options: ``lr=0.01``, as in a run file.
        script: The program, in place of the recorded one.
        workers: Number of processes, or ``auto``.
        data: Where a recipe's data is.
        allow_drift: Although software or CPU differ, or the files of the script.
        tell: Takes a line about what is going on.

    Raises:
        ConfigError: No run, no such step, a wrong change, or `out` is in use.
        WorkerFailed: A worker failed; for instance because the state does not fit what has changed.
    """
    home, place = Path(directory), Path(out)
    score = read_score(home)
    recipe = None if script is not None else score["settings"].get("recipe")
    if changes and recipe is None:
        raise ConfigError("--set is for runs of recipes. Hint: --script FILE, or other ARGS after --.")
    edits = _read_changes(changes)
    lines = read_steps(home / "ledger.jsonl")
    if step not in [line["step"] for line in lines]:
        raise ConfigError(
            f"expected --step as one of the {len(lines)} steps in {home}/ledger.jsonl, got {step}."
            f"{described_line(home / 'ledger.jsonl')}"
        )
    is_begun = _is_fork_of(place, home, step)
    # What a recipe or script is wrong about is found before anything is written.
    how: dict[str, Any] = {"script": script, "workers": workers, "data": data, "allow_drift": allow_drift}
    program = None if recipe else program_of(home, score, script, args, allow_drift=allow_drift or bool(script))
    count = workers_of(home, workers, score["replicas"])
    if recipe:
        options = called_with(home, score) | edits | {"data": data or edits.get("data"), "out": str(place)}
        options |= {"allow_drift": allow_drift or None}
        job = plan(recipe, workers, options)
    if not is_begun:
        known = recipe is not None or read_program(home) is not None  # then the steps that are shared are its own's
        branch(home, place, step, () if known else args, how | ({"script": None} if known else {}), tell)
    if program is None:
        tell(f"training from step {step + 1}, by the recipe {recipe} ...")
        result = run_in(job, place, env={})
    else:
        tell(f"training from step {step + 1}, by {program.script} ...")
        run_script(
            program.script, program.args, count, place, replicas=score["replicas"], threads=score["threads"], env={}
        )
        result = read_object(place / "result.json")
    return Fork(out=str(place), step=step, parent=str(home), result=result)


def _read_changes(changes: Sequence[str]) -> dict[str, Any]:
    """Return options by name from ``name=value``; values as in a run file, or plain words."""
    from unisono.recipes.catalog import Options

    known = {*options_of(Options), "strategy", *(f.name for options in CATALOG.values() for f in fields(options))}
    found: dict[str, Any] = {}
    for change in changes:
        name, is_given, value = change.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not is_given or name not in known or name in _OF_THE_PLACE:
            raise ConfigError(f"expected --set as OPTION=VALUE of the recipe, got {change!r}.{nearest(name, known)}")
        try:
            found[name] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            found[name] = value.strip()
    return found


def _is_fork_of(place: Path, home: Path, step: int) -> bool:
    """Whether a directory is this fork already; `ConfigError` where it holds something else."""
    if not place.exists() or not any(place.iterdir()):
        return False
    there = read_object(place / FILE_NAME)
    if (there.get("run"), there.get("step")) == (read_object(home / "run.json").get("run"), step):
        return True
    raise ConfigError(f"expected --out as a new directory, or this very fork, got {place}. Hint: choose another.")


def branch(home: Path, place: Path, step: int, args: Sequence[str], how: Mapping[str, Any], tell: Tell) -> None:
    """Make the run directory of a fork: the parent's ledger and state up to `step`; its ``fork.json`` last."""
    start = nearest_checkpoint(home / "checkpoints", step + 1, tell)
    adopt(place, alone=True).close()
    (place / "checkpoints").mkdir(mode=0o700, exist_ok=True)
    if start is not None and step_of(start) == step:
        shutil.copytree(start, place / "checkpoints" / start.name)
    else:
        first = 0 if start is None else step_of(start)
        tell(f"computing {step - first} steps to the state after step {step} ...")
        done = recompute(home, start, step, args, **how, tell=silent, look=lambda there: _take(there, place, step))
        if done.first_other is not None:
            shutil.rmtree(place)
            raise ConfigError(
                f"step {done.first_other}, computed again, is another than in the ledger of {home}: a fork would not "
                "share its history. Hint: unisono replay says more."
            )
    kept = place / "checkpoints" / next(path.name for other, path in list_steps(place / "checkpoints") if other == step)
    manifest, run = verify(kept), uuid.uuid4().hex
    facts = replace(manifest.facts, run=run, score={}, parent_step=None, metrics={})
    (kept / MANIFEST).write_bytes(encode(step, manifest.files, facts))
    with Directory.open(home) as there, Directory.open(place) as ours:
        shared = (there.read("ledger.jsonl") or b"").splitlines(keepends=True)[:step]
        ours.replace("ledger.jsonl", b"".join(shared))
        ours.replace("environment.json", there.read("environment.json") or b"{}")
        ours.replace("run.json", json.dumps({"run": run}).encode())
        parent = json.loads(there.read("score.json") or b"{}")
        told = {"parent": str(home.resolve()), "run": read_object(home / "run.json").get("run"), "step": step}
        told |= {"ledger_head": manifest.facts.ledger_head, **{n: parent[n] for n in _OF_PARENT if n in parent}}
        ours.replace(FILE_NAME, json.dumps(told, indent=2).encode())


def _take(there: Path, place: Path, step: int) -> None:
    """Copy the checkpoint of a step, where it was reached."""
    for other, path in list_steps(there / "checkpoints"):
        if other == step:
            shutil.copytree(path, place / "checkpoints" / path.name)
