"""One launch of each world size, shared by the tests of this folder."""

from typing import Any

from collectives import rank_programs
from forks import run_forked
from ranks import once


@once
def launched(world_size: int) -> list[dict[str, Any]]:
    """Return what each rank of a real launch has seen."""
    return run_forked(rank_programs.execute, world_size)
