"""The runs that this process has made, by directory: two that would write into one are told apart, or refused.

The lock of a directory keeps other processes out; this keeps order within one.
"""

import functools
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Protocol, final

from unisono.collectives.leader import leader_says
from unisono.collectives.transport import Transport
from unisono.errors import ConfigError

_lock = threading.Lock()  # ranks may be threads
_STEPPING = (inspect.GEN_RUNNING, inspect.GEN_SUSPENDED)


class Closable(Protocol):
    """What an earlier run has open in its directory."""

    def close(self) -> None:
        """Close it; safe to call twice."""


@final
class Claim:
    """One run's use of its directory."""

    def __init__(self, directory: Path | None, out: str | None) -> None:
        self.directory, self.out = directory, out
        self.is_used = False  #: Whether it has begun to work there.
        #: Returns the loop over its steps, if there is one.
        self.steps: Callable[[], Generator[Any] | None] = lambda: None
        self.record: Closable | None = None  #: What it has open in the directory.
        self.is_over = False  #: Whether a later run has taken the directory over.

    def take(self, *, is_imposed: bool) -> None:
        """Note that the run uses its directory; an earlier run of this process that is idle leaves it.

        Raises:
            ConfigError: An earlier run is in the middle of its steps there; or it was another run, which only the
                launcher's directory (`is_imposed`) brings to the same place.
        """
        assert self.directory is not None
        key = self.directory.resolve()
        with _lock:
            if is_imposed and key in _used and (_used[key] != self.out or self.out is None):
                raise ConfigError(
                    f"this program makes a second run, out={self.out!r} after out={_used[key]!r}, and the launcher has "
                    f"put one directory in the place of both ({key}): verify, chaos and replay watch one run. "
                    "Hint: let an argument of the program choose the run, or put each into a program of its own."
                )
            earlier = _open[key]() if key in _open else None
            if earlier is not None and earlier.is_stepping:
                raise ConfigError(
                    f"{self.directory} is in use by an earlier run of this very program, in the middle of its steps. "
                    "Hint: run.close() ends that one, as `with unisono.Run(...) as run:` does; or choose another out=."
                )
            _open[key] = weakref.ref(self)
        if earlier is not None:
            earlier.is_over = True
            if earlier.record is not None:
                earlier.record.close()

    @property
    def is_stepping(self) -> bool:
        """Whether a loop over the run's steps has begun and not ended."""
        steps = self.steps()
        return steps is not None and inspect.getgeneratorstate(steps) in _STEPPING

    def check(self) -> None:
        """Refuse (`ConfigError`) to work for a run whose directory a later one has taken."""
        if self.is_over:
            raise ConfigError(
                "a later run of this program has taken over this run's directory. Hint: go on with that run."
            )

    def use(self) -> None:
        """Begin to work in the directory; see `check`."""
        self.check()
        if self.directory is not None and not self.is_used:
            self.is_used = True
            _used.setdefault(self.directory.resolve(), self.out)

    def close(self) -> None:
        """Note that the run is closed."""
        self.steps, self.record = (lambda: None), None


def check_out(out: Any) -> None:
    """Refuse (`ConfigError`) what is no path of a run directory."""
    if out is not None and (not isinstance(out, str | os.PathLike) or not os.fspath(out)):
        raise ConfigError(
            f"expected out as the path of a directory, got {out!r:.100}. Hint: out='runs/first', or leave it out."
        )


def claim(transport: Transport, imposed: str | None, out: str | Path | None) -> Claim:
    """Return a run's claim, taken by the leader; collective where there is a directory.

    The directory that the launcher has `imposed` takes the place of the program's own, `out`.
    """
    directory = imposed or out
    made = Claim(None if directory is None else Path(directory), None if out is None else str(Path(out)))
    if directory is not None:
        leader_says(transport, functools.partial(made.take, is_imposed=imposed is not None))
    return made


_open: dict[Path, weakref.ref[Claim]] = {}
_used: dict[Path, str | None] = {}  # what the program had asked for
