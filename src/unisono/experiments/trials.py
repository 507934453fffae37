"""What verbs share that run one job several times, each time in a directory of its own: verify, chaos, the benches."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unisono.options.quantities import WORKERS, shown

_COMPARED = replace(WORKERS, high=1024)
Start = Callable[[int, Path], None]
"""Runs the job on so many workers, in a new run directory."""


def flag_of(name: str) -> str:
    """Return the option of a parameter: ``--batch-size`` of ``batch_size``."""
    return f"--{name.replace('_', '-')}"


def is_script(target: str) -> bool:
    """Whether a target is a file, not the name of a recipe."""
    return target.endswith(".py") or "/" in target


def check_target(target: str) -> None:
    """Refuse what is neither a recipe nor a script, before anything starts.

    Raises:
        ConfigError: Names what there is.
    """
    from unisono.errors import ConfigError
    from unisono.launchers.spec import ScriptTarget
    from unisono.launchers.spec import check_target as check_script
    from unisono.recipes.catalog import RECIPES
    from unisono.system.hints import nearest

    if is_script(target):
        check_script(ScriptTarget(path=target))
    elif target not in RECIPES:
        hint = nearest(target, RECIPES) or " Hint: a script is written as FILE.py, or with its directory."
        raise ConfigError(f"expected a script, or one of the recipes {', '.join(RECIPES)}, got {target!r}.{hint}")


def parse_workers(text: str) -> list[int]:
    """Return numbers of workers from ``1,2,4``, in the given order.

    Raises:
        ConfigError: Not a list of whole numbers from 1 to 1024.
    """
    from unisono.errors import ConfigError

    try:
        return [_COMPARED.read("--workers", part) for part in text.split(",")]
    except ConfigError:
        expected = f"numbers such as 1,2,4, each {_COMPARED.bounds}"
        raise ConfigError(f"expected --workers as {expected}, got {shown(text)}.") from None


def refuse_arguments(recipe: str, args: tuple[str, ...]) -> None:
    """Refuse arguments for a recipe.

    Raises:
        ConfigError: There are some.
    """
    from unisono.errors import ConfigError

    if args:
        raise ConfigError(f"recipe {recipe!r} takes no arguments, got {' '.join(args)}. Hint: they are for scripts.")


def refuse_recipe_options(script: str, given: Mapping[str, Any], *allowed: str) -> None:
    """Refuse options that only recipes have.

    Args:
        script: The target.
        given: What was given; None where nothing was.
        allowed: Names of options that scripts have too.

    Raises:
        ConfigError: Names the first.
    """
    from unisono.errors import ConfigError

    for name, value in given.items():
        if value is not None and name not in allowed:
            raise ConfigError(f"{flag_of(name)} is for recipes; {script} sets it itself.")


def script_starter(
    script: str,
    args: tuple[str, ...],
    *,
    threads: int | None,
    replicas_of: Callable[[int], int],
    env: Mapping[str, str] | None = None,
    scratch: str | None = None,
) -> Start:
    """Return what runs a script through the launcher.

    Args:
        script: The file.
        args: Its arguments.
        threads: Of each worker.
        replicas_of: From the workers to the replicas, where the script leaves them open.
        env: More variables of the workers.
        scratch: As in `LaunchSpec`.

    Raises:
        ConfigError: There is no such file.
    """
    from unisono.launchers.local import run_local
    from unisono.launchers.spec import LaunchSpec, ScriptTarget, check_target

    target = ScriptTarget(path=script, args=args)
    check_target(target)

    def start(count: int, out: Path) -> None:
        own = {**script_environment(out, replicas_of(count)), **(env or {})}
        run_local(LaunchSpec(target=target, workers=count, threads=threads, env=own, output="quiet", scratch=scratch))

    return start


def script_environment(out: Path, replicas: int) -> dict[str, str]:
    """Return the variables by which a script's run goes to `out`, with so many replicas where it leaves them open."""
    return {"UNISONO_RUN_DIR": str(out), "UNISONO_REPLICAS": str(replicas)}


def read_result(out: Path) -> dict[str, Any]:
    """Return ``result.json`` of a run that has ended.

    Raises:
        ConfigError: There is none.
    """
    from unisono.errors import ConfigError

    try:
        result: dict[str, Any] = json.loads((out / "result.json").read_text())
    except FileNotFoundError:
        raise ConfigError(
            "the script ended without a result. "
            "Hint: train through unisono.Run or unisono.Trainer, to the end of run.steps()."
        ) from None
    return result


def read_fresh_result(out: Path, workers: int) -> dict[str, Any]:
    """Return ``result.json`` of a run that began anew on so many workers.

    Raises:
        ConfigError: There is none, or of another world, or of a run without steps or one that was resumed.
    """
    from unisono.errors import ConfigError

    result = read_result(out)
    if result["world_size"] != workers or result["resumed_from_step"] or not result["steps"]:
        raise ConfigError(
            f"expected a fresh run of {workers} workers, got {result['world_size']} workers and {result['steps']} "
            f"steps, resumed from step {result['resumed_from_step']}. Hint: leave the world to the launcher."
        )
    return result


def check_picture(picture: str | None) -> None:
    """Refuse a picture that cannot be written before anything is measured for it.

    Raises:
        ConfigError: It is no SVG file, or its directory is missing.
    """
    from unisono.errors import ConfigError

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
