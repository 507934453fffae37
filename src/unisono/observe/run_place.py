"""What is said of a place that is no run directory: the same words wherever one is asked for.

In: the path, and what is looked for. Out: the error, with the run that was probably meant.
"""

from collections.abc import Sequence
from pathlib import Path

from unisono.errors import ConfigError
from unisono.system.hints import near_names

_SHOWN = 3
BEGUN = ("score.json", "run.lock")
"""Files of a run directory: what has one of them has at least begun."""
_DIRECTORY = "a run directory"
_USUAL = "the DIR of --out (out=)"


def no_run(path: Path, file: str = "score.json", *, expected: str = _DIRECTORY, hint: str = _USUAL) -> ConfigError:
    """Return the error about a path that is no run directory, or lacks what is looked for.

    Args:
        path: As it was given.
        file: What a run directory holds that this one does not.
        expected: What may stand there.
        hint: What to say where no run is near.
    """
    if not path.is_dir():
        got = f"{str(path)!r}, which {'is a file' if path.exists() else 'does not exist'}"
        near = _runs_like(path)
        hint = f"did you mean {' or '.join(near)}?" if near else f"{hint}."
    else:
        got = f"{str(path)!r}, {f'a directory without {file}' if any(path.iterdir()) else 'an empty directory'}"
        runs = runs_in(path)
        hint = f"one of its runs: {', '.join(map(str, runs[:_SHOWN]))}." if runs else f"{hint}."
    return ConfigError(f"expected {expected}, got {got}. Hint: {hint}")


def _runs_like(path: Path) -> list[str]:
    """Return the runs beside a path, or in ``runs``, whose names are nearly its own."""
    for folder in (path.parent, path.parent / "runs"):
        runs = {run.name: str(run) for run in runs_in(folder)}
        if near := near_names(path.name, [*runs]):
            return [runs[name] for name in near]
    return []


def runs_in(folder: Path, marks: Sequence[str] = BEGUN[:1]) -> list[Path]:
    """Return the runs in a directory itself, no deeper, the newest first: what holds one of the files `marks`."""
    files = [file for mark in marks for file in folder.glob(f"[!.]*/{mark}")] if folder.is_dir() else []
    files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
    return [*dict.fromkeys(file.parent for file in files)]
