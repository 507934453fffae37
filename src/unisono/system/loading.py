"""Load modules without looking for garbage meanwhile, and name the extra that brings what is not there.

What is loaded stays. Torch is half a million objects: going through all of them takes 0.1 s, and happens once or twice
while something is loaded that has nothing to do with them.
"""

import contextlib
import gc
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec

from unisono.errors import ConfigError


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """Hold the cyclic garbage collector still while the block runs; one that the program has stopped stays so."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def install_line(extra: str) -> str:
    """Return the command that installs the packages of an extra, however unisono itself came here."""
    try:
        known = requires("unisono") or []
    except PackageNotFoundError:  # a source tree on the path, not installed
        known = []
    needed = [each for each in known if re.search(rf"extra == ['\"]{extra}['\"]", each)]
    return "pip install " + (" ".join(repr(each.partition(";")[0].strip()) for each in needed) or f"'unisono[{extra}]'")


def check_there(package: str) -> None:
    """Refuse (`ConfigError`) to go on without a package, whose extra has its name."""
    if find_spec(package) is None:
        raise ConfigError(f"No module named {package!r}. Hint: {install_line(package)}.")


@contextlib.contextmanager
def needing(extra: str, what: str = "") -> Iterator[None]:
    """Turn an `ImportError` into a `ConfigError`: `what` for, what is missing, and the line that installs the extra."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{what}{error}. Hint: {install_line(extra)}.") from error
