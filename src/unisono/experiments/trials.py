"""What verify, chaos, the benches and rehearse share: they run one job several times, each time in a new directory."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from unisono.errors import ConfigError
from unisono.experiments.job import plan, run_in
from unisono.launchers.local import run_local
from unisono.launchers.spec import LaunchSpec, ScriptTarget
from unisono.launchers.spec import check_target as check_script
from unisono.system.hints import nearest
from unisono.system.machine import usable_cores
from unisono.system.words import counted

Tell = Callable[[str], None]
"""Takes a line about what is going on."""
Start = Callable[[int, Path], None]
"""Runs the job on so many workers, in a new run directory."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """A run that began anew and has ended."""

    out: Path  #: Its directory.
    launched_ns: int  #: When the launch began, in nanoseconds since 1970.
    seconds: float  #: Wall time of the launch, process start included.
    load: float  #: Load average of the machine before.
    result: dict[str, Any]  #: Its ``result.json``.
    score: dict[str, Any]  #: Its ``score.json``.


def silent(_: str) -> None:
    """Tell nobody."""


def flag_of(name: str) -> str:
    """Return the option of a parameter: ``--batch-size`` of ``batch_size``."""
    return f"--{name.replace('_', '-')}"


def as_typed(options: Mapping[str, Any]) -> list[str]:
    """Return options by key as they are typed; None and nothing are left out."""
    typed: list[str] = []
    for name, value in options.items():
        flag = flag_of(name)
        if isinstance(value, bool):
            typed.append(flag if value else f"--no-{flag[2:]}")
        elif value is not None:
            typed += [part for one in (value if isinstance(value, tuple) else (value,)) for part in (flag, str(one))]
    return typed


def is_script(target: str) -> bool:
    """Whether a target is a file, not the name of a recipe."""
    return target.endswith(".py") or "/" in target


def check_target(target: str, args: Sequence[str], options: Mapping[str, Any], allowed: Sequence[str] = ()) -> None:
    """Refuse what is neither a recipe nor a script, and what belongs to the other of them, before anything starts.

    Raises:
        ConfigError: Names what there is, or the first option that a script does not have.
    """
    from unisono.recipes.catalog import RECIPES

    if is_script(target):
        for name, value in options.items():
            if value is not None and name not in allowed:
                own = f"{flag_of(name)} {' '.join(map(str, value)) if isinstance(value, tuple | list) else value}"
                hint = f"Hint: what the script itself takes stands behind --: {target} -- {own}."
                raise ConfigError(f"{flag_of(name)} is for recipes; {target} sets it itself. {hint}")
        check_script(ScriptTarget(path=target))
    elif target not in RECIPES:
        hint = nearest(target, RECIPES) or " Hint: a script is written as FILE.py, or with its directory."
        raise ConfigError(f"expected a script, or one of the recipes {', '.join(RECIPES)}, got {target!r}.{hint}")
    elif args:
        raise ConfigError(f"recipe {target!r} takes no arguments, got {' '.join(args)}. Hint: they are for scripts.")


def starter(
    target: str, args: Sequence[str], workers: Sequence[int], options: Mapping[str, Any], *, weak: bool = False,
    steps: int | None = None, **launch: Any,
) -> Start:  # fmt: skip
    """Return what runs a recipe or a script on one of several numbers of workers; all of them are checked here.

    `launch`: more of the `LaunchSpec`.

    Raises:
        ConfigError: A wrong target, option or number of workers.
    """
    env = {} if steps is None else {"UNISONO_LAST_STEP": str(steps)}
    most, asked, threads = max(workers), options.get("replicas"), options.get("threads")
    allowed = ("replicas", "threads", *["strategy"] * (options.get("strategy") == "exact"))
    if is_script(target) and asked is not None and not weak and asked < most:
        raise ConfigError(f"expected --workers of at most --replicas {asked}, got {most}.")
    check_target(target, args, options, allowed)
    if is_script(target):

        def start_script(count: int, out: Path) -> None:
            replicas = (asked or 1) * count if weak else asked or most
            run_script(target, args, count, out, replicas=replicas, threads=threads, env=env, **launch)

        return start_script
    jobs = {}
    for count in workers:
        chosen = dict(options)
        if weak:
            base = plan(target, "1", chosen).options
            chosen |= {"batch_size": base.batch_size * count, "replicas": base.replicas * count}
        jobs[count] = plan(target, str(count), chosen, launch.get("devices"))

    def start_recipe(count: int, out: Path) -> None:
        run_in(jobs[count], out, env=env, **launch)

    return start_recipe


def run_script(
    script: str, args: Sequence[str], workers: int, out: Path, *, replicas: int, threads: int | None,
    env: Mapping[str, str], **launch: Any,
) -> None:  # fmt: skip
    """Run a script through the launcher, with its run in `out`, and so many replicas where it leaves them open.

    `launch`: more of the `LaunchSpec`, which else shows nothing of what the script prints.

    Raises:
        ConfigError: There is no such file.
        WorkerFailed: A worker failed.
    """
    target = ScriptTarget(path=script, args=tuple(args))
    own = {**script_environment(out, replicas), **env}
    settings: dict[str, Any] = {"output": "quiet"} | launch
    run_local(LaunchSpec(target=target, workers=workers, threads=threads, env=own, **settings))


def script_environment(out: Path, replicas: int) -> dict[str, str]:
    """Return the variables by which a script's run goes to `out`, with so many replicas where it leaves them open."""
    return {"UNISONO_RUN_DIR": str(out), "UNISONO_REPLICAS": str(replicas)}


def turns(things: Sequence[T], repeat: int) -> Iterator[tuple[int, int, T]]:
    """Yield (repetition, place, thing), forwards and backwards by turns: what slows the machine slows all alike."""
    for turn in range(repeat):
        places = range(len(things))
        yield from ((turn, place, things[place]) for place in (places if turn % 2 == 0 else reversed(places)))


def on_workers(count: int, threads: int = 1, noun: str = "worker") -> str:
    """Return how a run on so many workers is announced."""
    cores = usable_cores()
    return counted(count, noun) + (f" on {cores} cores, which must take turns" if count * threads > cores else "")


def run_fresh(start: Start, workers: int, out: Path) -> Finished:
    """Run a job in a new directory and return what it has left.

    Raises:
        WorkerFailed: A worker failed.
        ConfigError: There is no result, or of another world, or of a run without steps or one that was resumed.
    """
    load, launched_ns, began = os.getloadavg()[0], time.time_ns(), time.monotonic()
    start(workers, out)
    seconds = time.monotonic() - began
    result = read_result(out)
    if result["world_size"] != workers or result["resumed_from_step"] or not result["steps"]:
        raise ConfigError(
            f"expected a fresh run of {workers} workers, got {result['world_size']} workers and {result['steps']} "
            f"steps, resumed from step {result['resumed_from_step']}. Hint: leave the world to the launcher."
        )
    score = json.loads((out / "score.json").read_text())
    return Finished(out=out, launched_ns=launched_ns, seconds=seconds, load=load, result=result, score=score)


def read_result(out: Path) -> dict[str, Any]:
    """Return ``result.json`` of a run that has ended."""
    try:
        result: dict[str, Any] = json.loads((out / "result.json").read_text())
    except FileNotFoundError:
        raise ConfigError(
            "the script ended without a result. "
            "Hint: train through unisono.Run or unisono.Trainer, to the end of run.steps()."
        ) from None
    return result


def check_picture(picture: str | None) -> None:
    """Refuse a picture that cannot be written before anything is measured for it."""
    if picture is None:
        return
    path = Path(picture)
    if path.suffix.lower() != ".svg":
        raise ConfigError(
            f"expected --picture FILE.svg, got {picture!r}. Pictures are SVG, which browsers and documents show. "
            "Hint: --picture timings.svg; for a PNG: rsvg-convert -o FILE.png FILE.svg."
        )
    if path.is_dir() or not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(
            f"expected --picture to name a file that can be written, got {picture!r}. Hint: make its directory."
        )
