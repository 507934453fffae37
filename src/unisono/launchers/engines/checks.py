"""What the jobs of several engines refuse alike (pure)."""

import re
from collections.abc import Iterable

from unisono.errors import ConfigError

_VARIABLE = re.compile(r"[A-Za-z_]\w*")


def check_gpus(gpus: int, workers: int, of: str) -> None:
    """Refuse fewer GPUs than workers, where any are asked for.

    Args:
        gpus: Of each `of`.
        workers: Of each `of`.
        of: ``node`` or ``pod``.

    Raises:
        ConfigError: As said.
    """
    if gpus and gpus < workers:
        raise ConfigError(
            f"expected a GPU for each of the {workers} workers of a {of}, got {gpus}. "
            f"Hint: fewer workers per {of}, or no GPUs."
        )


def check_variables(names: Iterable[str]) -> None:
    """Refuse what is no name of an environment variable.

    Raises:
        ConfigError: As said.
    """
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise ConfigError(f"expected --env NAME=VALUE with a variable's name, got {name!r}.")
