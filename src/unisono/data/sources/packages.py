"""Packages that only some shards need: loaded when they do, and named with the line that installs them (no torch)."""

import importlib
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError


def needed(name: str, path: Path) -> Any:
    """Return the module `name`, without which `path` cannot be read.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path} cannot be read: {error}. Hint: pip install 'unisono[shards]'.") from error
