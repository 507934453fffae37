"""Look after the checkpoints of a run: describe, choose and prune them; run the next step of one on a copy."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unisono.checkpoint.manifest import read_manifest
from unisono.checkpoint.policy import CheckpointPolicy
from unisono.checkpoint.store import choose_removed, list_steps, newest_valid, remove, verify
from unisono.errors import CheckpointError, ConfigError
from unisono.experiments.job import plan, run_in
from unisono.experiments.trials import Tell, run_script, silent
from unisono.launchers.scratch import scratch_directory
from unisono.launchers.spec import ScriptTarget, check_target, resolve_workers
from unisono.observe.ledger import changed_line, damaged_from, read_lines
from unisono.system.directory import Directory

_COPIED = ("run.json", "score.json", "environment.json", "ledger.jsonl")
_FACTS = ("metrics", "parent_step", "fencing_token", "run", "ledger_head")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """What came of one step from a checkpoint."""

    checkpoint: str  #: Its name.
    step: int  #: The step that was run.
    #: Fields of the step that are others than in the ledger; empty where it is the same to the last bit.
    differing: list[str]


def rehearse(
    directory: str, args: Sequence[str] = (), *, step: int | None = None, script: str | None = None, workers: str = "1",
    data: str | None = None, allow_drift: bool = False, tell: Tell = silent,
) -> Rehearsal:  # fmt: skip
    """Load a checkpoint, run one step in a copy of its run, and compare the step with what the ledger says of it.

    Args:
        directory: The run directory, or the ``checkpoints/`` in it; nothing in it is touched.
        args: The script's arguments.
        step: Start after this step; None: after the newest checkpoint whose next step is in the ledger.
        script: The program, for runs that are no recipe's.
        workers: Number of processes, or ``auto``.
        data: Where a recipe's data is.
        allow_drift: Although software or CPU differ from the run's; for recipes.
        tell: Takes a line about what is going on.

    Raises:
        ConfigError: A wrong setting, or nothing to compare with.
        CheckpointError: The checkpoint is damaged.
        WorkerFailed: A worker failed.
    """
    found = find_checkpoints(directory)
    home = found.parent
    lines = {line["step"]: line for line in read_lines(home / "ledger.jsonl")}
    chosen = choose_checkpoint(found, step) if step is not None else _newest_with_next(found, lines)
    following = int(chosen.name.split("-")[1].split(".")[0]) + 1
    if following not in lines:
        raise ConfigError(f"the ledger says nothing of step {following}: there is nothing to compare with.")
    with scratch_directory("rehearse") as scratch:
        out = Path(scratch) / "run"
        shutil.copytree(chosen, out / "checkpoints" / chosen.name, symlinks=True)
        with Directory.open(home) as there:  # a stranger's links are not followed
            for name in _COPIED:
                if (content := there.read(name)) is not None:
                    (out / name).write_bytes(content)
        tell(f"running step {following} from {chosen.name} ...")
        score = json.loads((home / "score.json").read_text())
        env = {"UNISONO_LAST_STEP": str(following)}
        if script is not None:
            check_target(ScriptTarget(path=script))
            replicas, threads = score["replicas"], score["threads"]
            count = resolve_workers(workers, replicas)
            run_script(script, args, count, out, replicas=replicas, threads=threads, env=env)
        else:
            options = {"data": data, "allow_drift": allow_drift or None, "out": str(out)}
            _run_recipe(home, score, args, workers, lines[following], options, env)
        repeated = {line["step"]: line for line in read_lines(out / "ledger.jsonl")}.get(following, {})
    differing = [name for name, value in lines[following].items() if repeated.get(name) != value]
    return Rehearsal(checkpoint=chosen.name, step=following, differing=differing)


def find_checkpoints(directory: str) -> Path:
    """Return the directory with the checkpoints of a run.

    Raises:
        ConfigError: There are none.
    """
    given = Path(directory)
    for path in (given / "checkpoints", given):
        if list_steps(path):
            return path
    raise ConfigError(f"expected a run directory with checkpoints, got {directory}. Hint: the DIR of --out.")


def choose_checkpoint(found: Path, step: int | None, tell: Tell = silent) -> Path:
    """Return the checkpoint of a step, or the newest valid one, verified.

    Args:
        found: As `find_checkpoints` returns it.
        step: None: the newest valid one.
        tell: Takes a line about what is going on.

    Raises:
        ConfigError: There is none of that step.
        CheckpointError: It is damaged, or all are.
    """
    if step is None:
        newest, complaints = newest_valid(found)
        for complaint in complaints:
            tell(f"checkpoint passed over: {complaint}")
        assert newest is not None  # there are some, and none that is valid is an error
        return newest
    steps = list_steps(found)
    chosen = next((path for other, path in steps if other == step), None)
    if chosen is None:
        raise ConfigError(
            f"expected one of the steps {', '.join(str(other) for other, _ in steps)}, got --step {step}."
        )
    verify(chosen)
    return chosen


def describe_checkpoints(found: Path, *, is_thorough: bool) -> list[dict[str, Any]]:
    """Return what the manifests of checkpoints say, newest first; ``problem`` is what is wrong with one, or None.

    Args:
        found: As `find_checkpoints` returns it.
        is_thorough: Every file is read and compared with its hash, too.
    """
    rows: list[dict[str, Any]] = []
    for step, path in list_steps(found):
        row: dict[str, Any] = {"step": step, "name": path.name}
        try:
            manifest = verify(path) if is_thorough else read_manifest(path)
            size, more = sum(entry.bytes for entry in manifest.files.values()), asdict(manifest.facts)
            row |= {"epoch": manifest.facts.epoch, "bytes": size, "files": len(manifest.files)}
            row |= {**{name: more[name] for name in _FACTS}, "problem": None}
        except CheckpointError as error:
            row["problem"] = str(error)
        rows.append(row)
    return rows


def ledger_problem(ledger: Path, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what is wrong with the ledger beside described checkpoints; None: nothing, or there is none."""
    if not ledger.exists():
        return None
    if (number := damaged_from(ledger)) is not None:
        return f"line {number} is no entry"
    return changed_line(ledger, {row["step"]: row["ledger_head"] for row in rows if row["problem"] is None})


def prune_checkpoints(
    directory: str, *, dry_run: bool = False, tell: Tell = silent, **policy: Any
) -> tuple[list[str], str]:
    """Remove all but the newest valid checkpoints of a run, and return the names of those, and of the newest.

    Args:
        directory: The run directory, or the ``checkpoints/`` in it.
        dry_run: Nothing is removed.
        tell: Takes a line about what is going on.
        **policy: Of `CheckpointPolicy`: ``keep``, ``best``, ``best_mode``.

    Raises:
        ConfigError: There are no checkpoints, or a wrong policy.
        CheckpointError: None can be trusted; nothing is removed then.
    """
    chosen = CheckpointPolicy(**policy)
    newest = choose_checkpoint(find_checkpoints(directory), None, tell)
    with Directory.open(newest.parent) as home:
        removed = choose_removed(home, newest.name, verify(newest), chosen)
        for name in [] if dry_run else removed:
            remove(home, name)
    return list(removed), newest.name


def _newest_with_next(found: Path, lines: dict[int, Any]) -> Path:
    for step, path in list_steps(found):
        if step + 1 in lines:
            verify(path)
            return path
    raise ConfigError(
        f"no step after a checkpoint in {found} is in the ledger: there is nothing to compare with. "
        "Hint: rehearse while the run goes on, or keep more than the last checkpoint."
    )


def _run_recipe(
    home: Path, score: dict[str, Any], args: Sequence[str], workers: str, line: dict[str, Any],
    options: dict[str, Any], env: dict[str, str],
) -> None:  # fmt: skip
    recipe = score.get("settings", {}).get("recipe")
    if recipe is None or args:
        raise ConfigError(
            f"{home} is not the run of a recipe. Hint: --script FILE, with its own arguments after --."
            if recipe is None else f"the recipe {recipe!r} takes no arguments, got {' '.join(args)}."
        )  # fmt: skip
    result = json.loads((home / "result.json").read_text()) if (home / "result.json").exists() else {}
    options |= {name: score[name] for name in ("seed", "replicas", "batch_size", "threads")}
    options |= {name: value for name, value in score["settings"].items() if name in ("model", "limit")}
    options["epochs"] = max(line["epoch"] + 1, result.get("epochs", 1))
    options["checkpoint_every"] = line["step"]
    run_in(plan(recipe, workers, options), Path(options["out"]), env=env)
