"""Compute past steps of a run again, in a copy of it, and compare each with what the ledger says."""

import contextlib
import itertools
import shlex
import shutil
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from unisono.checkpoint.store import list_steps, verify
from unisono.errors import CheckpointError, ConfigError
from unisono.experiments.job import plan, run_in
from unisono.experiments.trials import Tell, run_script, silent
from unisono.launchers.scratch import scratch_directory
from unisono.launchers.spec import ScriptTarget, check_target, resolve_workers
from unisono.observe.chain import parse_all
from unisono.observe.damage import described_line, read_steps
from unisono.observe.run_json import object_in, read_object
from unisono.observe.run_place import no_run
from unisono.strategies.catalog import CATALOG
from unisono.system.directory import Directory
from unisono.train.run_directory.fork import FILE_NAME as FORK
from unisono.train.run_directory.program import Program, changed_files, read_program
from unisono.train.run_directory.upkeep import choose_checkpoint, find_checkpoints

_COPIED = ("run.json", "score.json", "environment.json", "ledger.jsonl", FORK)
_OF_A_RUN = ("seed", "replicas", "batch_size", "threads", "settings")


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """What came of computing steps again."""

    start: int  #: The step of the checkpoint that was begun from; 0: the beginning of the run.
    step: int  #: The last step that was computed.
    #: The first step that is another than in the ledger; None where all are the same to the last bit.
    first_other: int | None
    differing: list[str]  #: Fields of that step that are others.


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """What came of one step from a checkpoint."""

    checkpoint: str  #: Its name.
    step: int  #: The step that was run.
    #: Fields of the step that are others than in the ledger; empty where it is the same to the last bit.
    differing: list[str]


def replay(
    directory: str, args: Sequence[str] = (), *, step: int | None = None, first: int | None = None,
    script: str | None = None, workers: str = "1", data: str | None = None, allow_drift: bool = False,
    tell: Tell = silent, **launch: Any,
) -> Replay:  # fmt: skip
    """Compute a past step again, from the nearest checkpoint before it, and compare every step on the way.

    Args:
        directory: The run directory; nothing in it is touched.
        args: The script's arguments, in place of the recorded ones.
        step: Which one; None: the last.
        first: Begin before this one, where it comes before `step`.
        script: The program, in place of the recorded one.
        workers: Number of processes, or ``auto``.
        data: Where a recipe's data is.
        allow_drift: Although software or CPU (recipes), or the program's files (scripts), differ from the run's.
        tell: Takes a line about what is going on.
        **launch: More of the `LaunchSpec`.

    Raises:
        ConfigError: No run, no such step, or a program that has changed or does not compute it.
        WorkerFailed: A worker failed, for instance because the data has changed.
    """
    home = Path(directory)
    read_score(home)
    lines = [line["step"] for line in read_steps(home / "ledger.jsonl")]
    step = step if step is not None or not lines else lines[-1]
    if step is None or step not in lines:
        raise ConfigError(
            f"expected --step as one of the {len(lines)} steps in {home}/ledger.jsonl"
            f"{f', {lines[0]} to {lines[-1]}' if lines else ''}, got {'none' if step is None else step}."
            f"{described_line(home / 'ledger.jsonl')}"
        )
    start = nearest_checkpoint(home / "checkpoints", min(first or step, step), tell)
    first = 0 if start is None else step_of(start)
    if missing := set(range(first + 1, step)).difference(lines):
        raise ConfigError(f"the ledger says nothing of step {min(missing)}, which is on the way to step {step}.")
    many = f"{step - first} step{'s' * (step - first > 1)}"
    if start is None and (forked := read_object(home / FORK)):
        raise ConfigError(
            f"{home} is a fork, and keeps no state from before step {step}: it cannot be begun from nothing. "
            f"Hint: --step above {forked['step']} after another `unisono fork`, or replay {forked['parent']}."
        )
    what = f"computing {many}, {first + 1} to {step}, from {'the beginning' if start is None else start.name}"
    how: dict[str, Any] = {"script": script, "workers": workers, "data": data, "allow_drift": allow_drift} | launch
    return recompute(home, start, step, args, tell=lambda program: tell(f"{what}, by {program} ..."), **how)


def rehearse(
    directory: str, args: Sequence[str] = (), *, step: int | None = None, script: str | None = None, workers: str = "1",
    data: str | None = None, allow_drift: bool = False, tell: Tell = silent,
) -> Rehearsal:  # fmt: skip
    """Load a checkpoint, run one step in a copy of its run, and compare the step with what the ledger says of it.

    Args:
        directory: The run directory, or the ``checkpoints/`` in it; nothing in it is touched.
        args: The script's arguments.
        step: Start after this step; None: after the newest checkpoint whose next step is in the ledger.
        script: The program, where it is not the one that the run was made by.
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
    lines = {line["step"] for line in read_steps(found.parent / "ledger.jsonl")}
    chosen = choose_checkpoint(found, step) if step is not None else _newest_with_next(found, lines)
    following = step_of(chosen) + 1
    if following not in lines:
        raise ConfigError(f"the ledger says nothing of step {following}: there is nothing to compare with.")
    what = f"running step {following} from {chosen.name} ..."
    how: dict[str, Any] = {"script": script, "workers": workers, "data": data, "allow_drift": allow_drift}
    done = recompute(found.parent, chosen, following, args, tell=lambda _: tell(what), **how)
    return Rehearsal(checkpoint=chosen.name, step=following, differing=done.differing)


def recompute(
    home: Path, start: Path | None, last: int, args: Sequence[str] = (), *, script: str | None, workers: str,
    data: str | None, allow_drift: bool, tell: Callable[[str], None], look: Callable[[Path], object] = bool,
    env: Mapping[str, str] | None = None, **launch: Any,
) -> Replay:  # fmt: skip
    """Run the steps after a checkpoint (None: from the beginning) up to `last` in a copy of a run; see `replay`.

    `look` is given the copy before it goes.

    Raises:
        ConfigError: As `replay`; or the program has ended before `last`.
    """
    score = read_score(home)
    recorded = {line["step"]: line for line in read_steps(home / "ledger.jsonl")}
    is_recipe = script is None and not args and score["settings"].get("recipe") is not None
    program = None if is_recipe else program_of(home, score, script, args, allow_drift=allow_drift)
    count = workers_of(home, workers, score["replicas"])
    tell(
        f"the recipe {score['settings']['recipe']}" if program is None else shlex.join([program.script, *program.args])
    )
    first = 0 if start is None else step_of(start)
    with scratch_directory("replay") as scratch:
        out = Path(scratch) / "run"
        if start is None:
            out.mkdir(0o700)
        else:
            shutil.copytree(start, out / "checkpoints" / start.name, symlinks=True)
        with Directory.open(home) as there:  # a stranger's links are not followed
            for name in _COPIED:
                if (content := there.read(name)) is not None:
                    (out / name).write_bytes(content if name != "ledger.jsonl" else _up_to(first, content))
        launch |= {"env": {"UNISONO_LAST_STEP": str(last), **(env or {})}}
        if program is None:
            options = {"data": data, "allow_drift": allow_drift or None, "out": str(out)}
            _run_recipe(home, score, workers, recorded[last], options, launch)
        else:
            replicas, threads = score["replicas"], score["threads"]
            place = Path(program.directory or ".")
            with contextlib.chdir(place if place.is_dir() else "."):
                run_script(program.script, program.args, count, out, replicas=replicas, threads=threads, **launch)
        found = {line["step"]: line for line in read_steps(out / "ledger.jsonl")}
        look(out)
    for step in range(first + 1, last + 1):
        if step not in found:
            raise ConfigError(
                f"the program has ended without computing step {step}. Hint: is it the script that made the run, with "
                "the same arguments (after --), and does it train to the end?"
            )
        one, other = recorded[step], found[step]
        differing = [name for name in one | other if one.get(name) != other.get(name)]
        if differing:
            return Replay(start=first, step=last, first_other=step, differing=differing)
    return Replay(start=first, step=last, first_other=None, differing=[])


def _up_to(step: int, content: bytes) -> bytes:
    """Return the ledger up to a step: in the steps after it a program that computes nothing would find its proof."""
    kept = itertools.takewhile(lambda line: line[1] is None or line[1]["step"] <= step, parse_all(content))
    return b"".join(line + b"\n" for line, _ in kept)


def read_score(home: Path) -> dict[str, Any]:
    """Return the score of a run.

    Raises:
        ConfigError: The directory is none of a run.
    """  # noqa: DOC501 - a function makes the error
    score = _object(home, "score.json") if home.is_dir() else None
    if score is None:
        raise no_run(home)
    if not set(_OF_A_RUN) <= score.keys():
        raise ConfigError(f"{home}/score.json is not what a run writes.")
    return score


def _object(home: Path, name: str) -> dict[str, Any] | None:
    with Directory.open(home) as there:
        return object_in(home / name, lambda: there.read(name))


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint's directory."""
    return int(checkpoint.name.split("-")[1].split(".")[0])


def _newest_with_next(found: Path, lines: Collection[int]) -> Path:
    for step, path in list_steps(found):
        if step + 1 in lines:
            verify(path)
            return path
    raise ConfigError(
        f"no step after a checkpoint in {found} is in the ledger: there is nothing to compare with. "
        "Hint: rehearse while the run goes on, or keep more than the last checkpoint."
    )


def nearest_checkpoint(checkpoints: Path, step: int, tell: Tell) -> Path | None:
    """Return the newest valid checkpoint before a step; None: there is none, so the run's beginning is."""
    for other, path in list_steps(checkpoints):
        if other < step:
            try:
                verify(path)
            except CheckpointError as error:
                tell(f"checkpoint skipped: {error}")
            else:
                return path
    return None


def workers_of(home: Path, workers: str, replicas: int) -> int:
    """Return how many; refuse (`ConfigError`) another number than the run's where the strategy's bits depend on it."""
    count = resolve_workers(workers, replicas)
    needed = (_object(home, "environment.json") or {}).get("world_size")
    if needed is not None and count != needed:
        raise ConfigError(
            f"the bits of {home} depend on the number of workers, which was {needed}, got {workers}. "
            f"Hint: --workers {needed}."
        )
    return count


def program_of(
    home: Path, score: dict[str, Any], script: str | None, args: Sequence[str], *, allow_drift: bool
) -> Program:  # fmt: skip
    """Return the program of a run that is no recipe's: the one that is given, else the recorded one if it is the same.

    Raises:
        ConfigError: There is none, or its files have changed.
    """
    recipe = score["settings"].get("recipe")
    if script is None and recipe is not None:
        raise ConfigError(f"the recipe {recipe!r} takes no arguments, got {' '.join(args)}.")
    found = read_program(home)
    if script is not None:
        check_target(ScriptTarget(path=script))
        return Program(script=script, args=tuple(args), files={})
    if found is None:
        raise ConfigError(
            f"{home} is not the run of a recipe, and does not say which script made it. "
            "Hint: --script FILE, with its own arguments after --."
        )
    if not allow_drift and (changed := changed_files(found)):
        raise ConfigError(
            f"the program of {home} is not what it was: {'; '.join(changed)}. Hint: bring back the files as they were; "
            "--script FILE runs another program, --allow-drift this one as it is."
        )
    check_target(ScriptTarget(path=found.script))
    return replace(found, args=tuple(args), directory="") if args else found


def _recorded_options(home: Path, score: dict[str, Any]) -> dict[str, Any]:
    """Return what a recipe was called with, less what its strategy may do otherwise with the same bits."""
    with Directory.open(home) as there:
        content = there.read("run.toml")
    try:
        found = tomllib.loads((content or b"").decode())
    except ValueError as error:
        raise ConfigError(f"{home}/run.toml is not what a run writes: {error}.") from error
    of_strategy = {field.name for field in fields(CATALOG[score["strategy"]["name"]])}
    found = {name: value for name, value in found.items() if name not in of_strategy | {"recipe"}}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def called_with(home: Path, score: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a recipe's run, `epochs` as far as it came."""
    options = _recorded_options(home, score)
    options |= {name: score[name] for name in ("seed", "replicas", "batch_size", "threads")}
    options |= {name: value for name, value in score["settings"].items() if name in ("model", "limit")}
    options |= {"strategy" if name == "name" else name: value for name, value in score["strategy"].items()}
    return options | {"epochs": read_object(home / "result.json").get("epochs", 1)}


def _run_recipe(
    home: Path, score: dict[str, Any], workers: str, line: dict[str, Any], options: dict[str, Any],
    launch: dict[str, Any],
) -> None:  # fmt: skip
    options = called_with(home, score) | {name: value for name, value in options.items() if value is not None}
    options["epochs"] = max(line["epoch"] + 1, options["epochs"])
    options |= {"checkpoint_every": line["step"], "keep_sparse": None, "keep_sparse_bytes": None}
    run_in(plan(score["settings"]["recipe"], workers, options), Path(options["out"]), **launch)
