"""``failure.json`` of a run directory: the error that has ended the newest launch, for whoever looks at the run later.

In: the exception that ends a worker's program, or any program with a run. Out: a file, and what it says. Errors that
follow from another rank's are not kept. Must not import torch.
"""

import contextlib
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from unisono.errors import RunStopped, UnisonoError
from unisono.launchers.supervision.failure import location_of
from unisono.launchers.worker.error_kinds import is_secondary, text_of
from unisono.system.directory import Directory
from unisono.system.messages import folded, on_uncaught, says_all

NAME = "failure.json"
_MOST = 20_000
"""Characters of a traceback."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class KeptFailure:
    """How a launch has failed."""

    launch: int  #: Its number, as counted by the directory.
    rank: int  #: The rank that has failed.
    error: str  #: Type and text of the exception, in one line.
    location: str  #: ``file:line`` of the innermost frame of the program; empty where there is none.
    traceback: str  #: As Python prints it; of an error that says all, empty.
    at_s: float  #: When, in seconds since 1970.

    def spell(self) -> str:
        """Return in words which rank has failed, with what, and where."""
        where = f" ({self.location})" if self.location else ""
        return f"rank {self.rank} with {self.error}{where}"


def keep_failures(directory: Path, rank: int, launch: Callable[[], int]) -> None:
    """From now on keep the error that ends this process; `launch` says which one it is, 0 where it is not known yet."""

    def keep(error: BaseException) -> None:
        number = launch()
        if not number or isinstance(error, RunStopped | SystemExit) or is_secondary(error):
            return
        text = "" if says_all(error) else folded("".join(traceback.format_exception(error)))
        found = KeptFailure(
            launch=number, rank=rank, error=f"{type(error).__name__}: {text_of(error)}".partition("\n")[0][:2000],
            location=location_of(error.__traceback__), traceback=text[-_MOST:], at_s=time.time(),
        )  # fmt: skip
        # The error itself is told by who ends the program; what it was may be why this cannot be written.
        with contextlib.suppress(OSError, UnisonoError), Directory.open(directory) as home:
            home.replace(NAME, (json.dumps(asdict(found), indent=2) + "\n").encode())

    on_uncaught(keep)


def kept_failure(directory: Path, launch: int) -> KeptFailure | None:
    """Return how a launch has failed; None where nothing of it was kept."""
    try:
        found = KeptFailure(**json.loads((directory / NAME).read_text()))
        return found if found.launch == launch else None
    except (OSError, ValueError, TypeError):
        return None
