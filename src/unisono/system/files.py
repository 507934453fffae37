"""Result files: written whole or not at all, and never over something else (no torch)."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file by `data`; whoever reads it sees the old or the new content.

    Raises:
        ConfigError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ConfigError(
            f"expected a file that can be written, got {path}: {error.strerror}. Hint: its directory must exist."
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


def read_json(path: Path) -> Any:
    """Return a JSON file's content.

    Raises:
        ConfigError: It cannot be read, or is truncated.
    """
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a result file that can be read: {error}. Hint: measure again.") from error
