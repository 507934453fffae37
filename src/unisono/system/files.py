"""Files by their paths: read safely, written whole or not at all, never over something else (no torch)."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.system.descriptors import File
from unisono.system.directory import Directory
from unisono.system.disk import hint_of


def read_file(path: Path) -> bytes | None:
    """Return the bytes of a file that lies in a run directory, None where there is none.

    Raises:
        CheckpointError: It is no regular file.
        OSError: It cannot be read.
    """
    try:
        with Directory.open(path.parent) as home:
            return home.read(path.name)
    except FileNotFoundError:
        return None


def replace_file(
    path: Path, content: bytes | Callable[[File], object], *, mode: int = 0o600, is_lasting: bool = True
) -> None:
    """Put a file under a path so that its name shows the old or all of the new content, also after a crash.

    Args:
        path: Of the file; its directory must exist.
        content: Its bytes, or what writes them into the open file.
        mode: As in `Directory.replacing`.
        is_lasting: As in `Directory.replacing`.
    """
    with Directory.open(path.parent) as home, home.replacing(path.name, mode=mode, is_lasting=is_lasting) as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            content(file)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file by `data`; whoever reads it sees the old or the new content."""
    try:
        replace_file(path, data, mode=0o666)  # as open files are made: less what the user's mask takes away
    except OSError as error:
        raise ConfigError(
            f"expected a file that can be written, got {path}: {error.strerror}."
            f"{hint_of(error, 'its directory must exist')}"
        ) from error


def check_place(path: Path, kinds: tuple[str, ...]) -> None:
    """Refuse a file that cannot be written, or that holds something that none of ours has written.

    Args:
        path: Where a result will go.
        kinds: What may be replaced: the ``kind`` of our JSON files, or how a file of ours begins.

    Raises:
        ConfigError: As said; the file is left as it is.
    """
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"expected a file in a directory that can be written, got {str(path)!r}.")
    if not path.exists():
        return
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} exists and cannot be read ({error.strerror}); it is left as it is.") from error
    if any(kind.encode() in content[:400] for kind in kinds):
        return
    raise ConfigError(
        f"{path} exists and is none of ours to replace; it is left as it is. Hint: choose another place, or remove it."
    )


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return JSON; NaN and infinities, which it does not have, become null."""

    def plain(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: plain(inner) for key, inner in part.items()}
        if isinstance(part, list | tuple):
            return [plain(inner) for inner in part]
        return None if isinstance(part, float) and not math.isfinite(part) else part

    return json.dumps(plain(value), indent=indent, allow_nan=False)


def read_json(path: Path) -> Any:
    """Return a JSON file's content."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a result file that can be read: {error}. Hint: measure again.") from error
