"""The JSON files of a run directory, as objects (imports neither torch nor NumPy: launchers read them, too)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.system.files import read_file

LOST = "remove it, and it is written again from the checkpoints, where there are some; or choose another --out"
"""What to do about a file that is damaged."""


def read_object(file: Path) -> dict[str, Any]:
    """Return one of the JSON files of a run directory, empty where there is none."""
    hint = " Hint: put back a copy of it; or remove it, and the same command writes it again."
    return object_in(file, lambda: read_file(file), hint) or {}


def object_in(file: Path, read: Callable[[], bytes | None], hint: str = "") -> dict[str, Any] | None:
    """Return the JSON object in what `read` gives; None for nothing, or zeros, as a loss of power leaves them."""
    try:
        data = read()
        is_lost = data is None or not data.strip(b"\0 \r\n")
        content: Any = None if is_lost else json.loads(data or b"")
        if not is_lost and not isinstance(content, dict):
            raise TypeError(f"expected an object, got {type(content).__name__}")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{file} is not the JSON that a run writes: {error}.{hint}") from error
    found: dict[str, Any] | None = content
    return found
