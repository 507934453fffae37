"""What somebody who wants more or fewer workers is told: a pure rule, but for the clock.

In: how many are wanted, and how many there are. Out: why that cannot be, or what has become of it.
"""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, final

from unisono.launchers.control import Asked

NONE_STARTED = "one has died, and no other is started (--max-restarts)"


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


def with_least(text: str | None, workers: int) -> str | None:
    """Return the range with so many workers in it: a restart may begin with fewer than the least."""
    if text is None:
        return None
    least, most = parse_sizes(text)
    return f"{min(least, workers)}:{most}"


def shares(wanted: int, nodes: Sequence[int], hosts: Collection[int]) -> dict[int, int]:
    """Return how many workers each host is to have, by node rank; more begin where the fewest are.

    Args:
        wanted: How many there are to be on all hosts.
        nodes: The node ranks of the members' hosts, in the members' order: those that came last leave.
        hosts: The hosts that go on, by node rank.
    """
    found = {node: nodes[:wanted].count(node) for node in sorted(hosts)}
    for _ in range(wanted - sum(found.values())):
        found[min(found, key=lambda node: (found[node], node))] += 1
    return found


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


@final
class PassedOn:
    """Wishes that a launcher has passed on to the one that decides, until it answers; `say` takes words for it."""

    def __init__(self, say: Callable[[dict[str, Any]], Any]) -> None:
        self._say, self._next = say, 0
        self._waiting: dict[int, Asked] = {}

    def ask(self, asked: Asked) -> None:
        """Pass one on."""
        self._next += 1
        self._waiting[self._next] = asked
        self._say({"ask": self._next, "workers": asked.workers})

    def answered(self, number: int, answer: dict[str, Any]) -> None:
        """Give the answer to who waits for it."""
        if number in self._waiting:
            self._waiting.pop(number).answer(answer)

    def ask_again(self, ask: Callable[[Asked], None]) -> None:
        """Ask what has had no answer again: another launcher decides, which may not have heard of it."""
        waiting, self._waiting = [*self._waiting.values()], {}
        for asked in waiting:
            ask(asked)


def ranks_of(ranks: Sequence[int]) -> str:
    """Return ranks in words, with their verb: ``rank 3 is``, ``ranks 2, 3 are``."""
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"
