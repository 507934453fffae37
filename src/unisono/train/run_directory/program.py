"""Which program a run was made by (``program.json``): script, arguments, and hashes of its files.

In: this process, as it stands when the run opens. Out: what a replay needs to start the program again, and to see that
it is the same.
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from unisono.errors import ConfigError
from unisono.system.directory import Directory

FILE_NAME = "program.json"
_OURS = Path(__file__).parents[2]
_INSTALLED = {"site-packages", "dist-packages"}
_PYTHONS = (Path(sys.prefix), Path(sys.base_prefix))


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
    try:
        directory = str(Path.cwd())
    except FileNotFoundError:  # somebody has deleted it
        directory = ""
    return {"script": str(script), "args": sys.argv[1:], "directory": directory, "files": hashes}


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
        content = json.loads(data)
        script, args, files = content["script"], content["args"], dict(content["files"])
        directory = content.get("directory", "")  # older runs do not tell
        is_text = all(isinstance(text, str) for text in (script, directory, *args, *files, *files.values()))
    except (ValueError, TypeError, KeyError):
        is_text = False
    if not is_text:
        raise ConfigError(f"{home / FILE_NAME} is not what a run writes. Hint: --script FILE.")
    return Program(script=script, args=tuple(args), files=files, directory=directory)


def changed_files(program: Program) -> list[str]:
    """Return one line for each file that is missing or another than when the run was made."""
    told = []
    for name, sha256 in program.files.items():
        if not Path(name).is_file():
            told.append(f"{name} is missing")
        elif _hash(Path(name)) != sha256:
            told.append(f"{name} has changed")
    return told


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
