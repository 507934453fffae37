"""Which program a run was made by (``program.json``): script, arguments, and hashes of its files.

In: this process, as it stands when the run opens. Out: what a replay needs to start the program again, and to see that
it is the same; what has changed in it since the steps that a resume goes on from.
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, final

from unisono.environment import told_command
from unisono.errors import ConfigError
from unisono.launchers.program_files import COMMAND
from unisono.system.directory import Directory
from unisono.train.run_directory.files import RunFiles

FILE_NAME = "program.json"
_OURS = Path(__file__).parents[2]
_INSTALLED = {"site-packages", "dist-packages"}
_PYTHONS = (Path(sys.prefix), Path(sys.base_prefix))
_MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A script, and what it consists of."""

    script: str  #: Its path, absolute.
    args: tuple[str, ...]  #: Its arguments.
    #: SHA-256 by path: of the script, and of the modules from below its directory that were imported.
    files: dict[str, str]
    directory: str = ""  #: Where it worked, which paths in its arguments may be relative to; empty: nobody knows.


def describe_program(modules: Mapping[str, ModuleType] = MappingProxyType(sys.modules)) -> dict[str, Any] | None:
    """Return what ``program.json`` holds; None where no script's file is known: a notebook, a recipe, ``python -m``."""
    main = modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None:
        return None
    script = Path(file).absolute()
    if script.is_relative_to(_OURS) or not script.is_file():
        return None
    found = {Path(getattr(module, "__file__", None) or "/") for module in list(modules.values())}
    files = {script, *(path for path in found if _is_below(script.parent, path))}
    hashes = {str(path): _hash(path) for path in sorted(files)}
    return {"script": str(script), "args": sys.argv[1:], "directory": _here(), "files": hashes}


def _here() -> str:
    """Return the working directory; empty where somebody has deleted it."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


def _is_below(directory: Path, path: Path) -> bool:
    """Whether a file is a module from below a directory that belongs to the program: not to Python, not installed."""
    if path.suffix != ".py" or not path.is_relative_to(directory) or _INSTALLED & {*path.parts}:
        return False
    return not any(path.is_relative_to(place) for place in (*_PYTHONS, _OURS)) and path.is_file()


def read_program(home: Path) -> Program | None:
    """Return the program of a run directory; None where it does not tell."""
    with Directory.open(home) as there:
        data = there.read(FILE_NAME)
    if data is None:
        return None
    try:
        found = _parse(json.loads(data))
    except ValueError:
        found = None
    if found is None:
        raise ConfigError(f"{home / FILE_NAME} is not what a run writes. Hint: --script FILE.")
    return found


def _parse(content: Any) -> Program | None:
    """Return what a program's JSON says; None where it is not what a run writes."""
    try:
        script, args, files = content["script"], content["args"], dict(content["files"])
        directory = content.get("directory", "")  # older runs do not tell
        is_text = all(isinstance(text, str) for text in (script, directory, *args, *files, *files.values()))
    except (ValueError, TypeError, KeyError):
        is_text = False
    return Program(script=script, args=tuple(args), files=files, directory=directory) if is_text else None


def changed_files(program: Program) -> list[str]:
    """Return one line for each file that is missing or another than when the run was made."""
    told = []
    for name, sha256 in program.files.items():
        if not Path(name).is_file():
            told.append(f"{name} is missing")
        elif _hash(Path(name)) != sha256:
            told.append(f"{name} has changed")
    return told


@final
class LaunchedProgram:
    """The program of this launch beside the one that has made the steps before it; on a rank that keeps the files.

    ``program.json`` is that of the newest launch that had steps to compute. Where its files are others than those of
    the launch before, ``before`` holds that one's program too, and the last ``step`` that it has made.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._now: dict[str, Any] | None = None

    def enter(self) -> None:
        """Look at this process; record the command that started it, and its program where the directory has none."""
        if command := told_command():
            self._files.write(COMMAND, {"command": command, "directory": _here()})
        self._now = describe_program()
        if self._now is not None and self._files.read(FILE_NAME) is None:
            self._files.write(FILE_NAME, self._now)

    def begin(self, done: int) -> str:
        """Record it as the program of the steps after `done`; return what is to be said of what has changed since then.

        Empty where nothing has, nothing is known, or it was said already, to a launch of the same files that has come
        no further: the attempt before a restart.
        """
        now, there = self._now, self._files.read(FILE_NAME)
        if now is None or there is None:
            return ""
        before: Any = there.get("before")
        last = before.get("step") if isinstance(before, dict) else None
        newest = {name: value for name, value in there.items() if name != "before"}
        made = before if isinstance(last, int) and done <= last else newest
        then = _parse(made)
        changes = [] if then is None or done == 0 else _changes(then, now)
        content = now | ({"before": made | {"step": done}} if changes else {})
        if content != there:
            self._files.write(FILE_NAME, content)
        if not changes or newest.get("files") == now["files"]:
            return ""
        more = f", and {len(changes) - _MOST_NAMED} more" if len(changes) > _MOST_NAMED else ""
        return (
            f"goes on with another program than up to step {done}: {', '.join(changes[:_MOST_NAMED])}{more}. "
            "Hint: if it computes something else (loss, transform, ...), choose another --out (out=), or "
            f"unisono fork {self._files.directory.path} --step {done} --out DIR; a comment or a print changes nothing."
        )


def _changes(then: Program, now: Mapping[str, Any]) -> list[str]:
    """Return what has changed, file by file; their names are below the script's directory, which may have moved."""
    home = Path(now["script"]).parent
    old, new = _by_name(Path(then.script).parent, then.files), _by_name(home, now["files"])
    return [
        *(f"{name} has changed" for name in new if old.get(name, new[name]) != new[name]),
        *(f"{name} is new" for name in new if name not in old),
        *(f"{name} is gone" for name in old if not (home / name).is_file()),
    ]


def _by_name(home: Path, files: Mapping[str, str]) -> dict[str, str]:
    paths = {Path(name): sha256 for name, sha256 in files.items()}
    return {str(path.relative_to(home) if path.is_relative_to(home) else path): paths[path] for path in paths}


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
