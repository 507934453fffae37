"""What somebody who wants more or fewer workers is told: a pure rule, but for the clock.

In: how many are wanted, and how many there are. Out: why that cannot be, or what has become of it.
"""

import time
from collections.abc import Sequence
from typing import Any, final

from unisono.launchers.control import Asked


def parse_sizes(text: str | None) -> tuple[int, int]:
    """Return the least and the most workers of ``MIN:MAX``; 1 and 0 (any) where nothing is said.

    Raises:
        ValueError: It is no such range.
    """
    if text is None:
        return 1, 0
    least, _, most = text.partition(":")
    if not (least.isascii() and least.isdigit() and most.isascii() and most.isdigit()):
        raise ValueError(text)
    if not 1 <= int(least) <= int(most):
        raise ValueError(text)
    return int(least), int(most)


def why_refused(workers: Any, least: int, most: int) -> str:
    """Return why there cannot be so many workers; empty where there can. Before the steps begin, `most` is 0."""
    if not most:
        return "its workers have not begun their steps; ask again"
    if type(workers) is not int or not least <= workers <= most:
        return f"expected {least} to {most} workers (--elastic, and at most one for each replica), got {workers}"
    return ""


@final
class Resizing:
    """One wish under way."""

    def __init__(self, asked: Asked, before: Sequence[int]) -> None:
        self._asked, self._before, self._began = asked, {*before}, time.monotonic()

    def succeed(self, now: Sequence[int]) -> None:
        """Say that there are as many as are wanted."""
        self._asked.answer(
            {
                "workers": len(now), "before": len(self._before), "left": sorted(self._before - {*now}),
                "joined": sorted({*now} - self._before), "seconds": round(time.monotonic() - self._began, 3),
            }
        )  # fmt: skip

    def fail(self, why: str) -> None:
        """Say why there are not."""
        self._asked.answer({"failed": why})


def ranks_of(ranks: Sequence[int]) -> str:
    """Return ranks in words, with their verb: ``rank 3 is``, ``ranks 2, 3 are``."""
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"
