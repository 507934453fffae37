"""Which workers are started to take the places of those that have died, and which of them are let in: a pure rule.

In: deaths, and which workers are ready. Out: the numbers of workers to start and to invite. Every death is judged as
`Restarts` judges an attempt, so a replacement after progress is free. Spares have been started with the others; one
that is ready takes a place at once, and another one is started for it. Knows no process and no clock.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import final

from unisono.launchers.supervision.restarts import Ending, GiveUp, Restarts


@final
class Replacements:
    """The rule with its memory.

    Args:
        workers: Members of a whole world; their numbers are the first.
        spares: How many more are to be ready.
        max_restarts: As in `Restarts`; also how many may end, in a row, before they have joined.
        numbers: Of those that are started; None: those behind the first ones.

    Attributes:
        guests: Numbers of those that have been started and are no members yet; whether they are ready.
        why_not: Why no more are started; empty where some may be.
    """

    def __init__(
        self, workers: int, spares: int = 0, max_restarts: int = 0, numbers: Iterator[int] | None = None
    ) -> None:  # fmt: skip
        self._size, self._spares, self._max_restarts = workers, spares, max_restarts
        self._restarts = Restarts(max_restarts, workers)
        self._numbers = itertools.count(workers) if numbers is None else numbers
        self._allowed, self._failures = spares, 0
        self._invited: set[int] = set()
        self._is_over = False
        self.guests: dict[int, bool] = {}
        self.why_not = ""

    def start(self, members: int) -> list[int]:
        """Return the numbers of workers to be started now, beside so many members."""
        found: list[int] = []
        while self._allowed and not self._is_over and members + len(self.guests) < self._size + self._spares:
            self._allowed -= 1
            found.append(next(self._numbers))
            self.guests[found[-1]] = False
        return found

    def resize(self, size: int, members: int) -> list[int]:
        """Let a whole world have so many members; return the guests that are not needed any more, the newest.

        Args:
            size: How many.
            members: Those that there are now.
        """
        self._size = size
        self._allowed = max(0, size + self._spares - members - len(self.guests))
        needed = max(0, size - members) + self._spares
        self._invited.clear()  # whoever is let in, `Membership` says
        return sorted(self.guests)[needed:]

    @property
    def is_coming(self) -> bool:
        """Whether a worker may still join."""
        return not self._is_over and bool(self.guests or self._allowed)

    def ready(self, number: int) -> None:
        """Take into account that a guest is ready to join."""
        if number in self.guests:
            self.guests[number] = True

    def invite(self, members: int) -> list[int]:
        """Return the guests that are to join so many members now, each once."""
        missing = 0 if self._is_over else self._size - members - len(self._invited)
        found = [number for number, is_ready in self.guests.items() if is_ready and number not in self._invited]
        found = found[: max(0, missing)]
        self._invited |= {*found}
        return found

    def became_member(self, number: int) -> None:
        """Take into account that a guest is called like the others from now on."""
        self.guests.pop(number, None)
        self._invited.discard(number)

    def joined(self) -> None:
        """Take into account that a worker has got all that it needs."""
        self._failures = 0

    def died(self, ending: Ending, *, has_joined: bool) -> None:
        """Take a death into account: that of a member, or of a worker that had not `joined`."""
        self._failures = 0 if has_joined else self._failures + 1
        decision = self._restarts.judge(ending)
        if not has_joined and self._failures > self._max_restarts:
            self.stop(f"{self._failures} workers in a row have ended before they had joined")
        elif isinstance(decision, GiveUp):
            reason = decision.reason.partition(" Hint: ")[0].removeprefix("No restart: ").rstrip(".")
            self.why_not = reason if self._max_restarts else ""  # none were asked for: how a run ends is no reason
        else:
            self._allowed += 1

    def stop(self, why: str = "") -> list[int]:
        """Start and invite none any more; return the guests that are left."""
        self._is_over, self.why_not = True, self.why_not or why
        return [*self.guests]


def numbers_of(node: int, spans: Sequence[range]) -> Iterator[int]:
    """Return the numbers of the workers that a host starts later: no other host uses them, and all know whose they are.

    Args:
        node: Node rank of the host.
        spans: The ranks of each host at the start, by node rank.
    """
    return itertools.count(spans[-1].stop + node, len(spans))


def node_of(number: int, spans: Sequence[range]) -> int:
    """Return the node rank of a worker's host; arguments as `numbers_of` has them."""
    if number >= spans[-1].stop:
        return node_of_later(number, spans[-1].stop, len(spans))
    return next(node for node, span in enumerate(spans) if number in span)


def node_of_later(number: int, workers: int, hosts: int) -> int:
    """Return the node rank of a worker that was started later than the first ones, so many on so many hosts."""
    return (number - workers) % hosts
