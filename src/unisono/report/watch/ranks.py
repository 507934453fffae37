"""The ranks of a watched run (pure): where the time of each goes, which is slow and why, which is gone."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

from unisono.observe.speed import WINDOW

_BEHIND_S = 2.0
"""Ranks write what they took once a second; so much more, and three steps, is too long."""
_OWN = ("data", "forward", "backward")
"""Phases in which a rank waits for no other."""


@final
@dataclass(slots=True)
class RankState:
    """One rank as its phases tell it, over its last steps."""

    launch: int = 0  #: Number of the launch.
    world_size: int = 0  #: Ranks at its beginning.
    opened_s: float = 0.0  #: When it was there, in seconds since 1970.
    step: int = 0  #: The last one that is written.
    first: int = 0  #: The first one.
    began_s: float = 0.0  #: When that had begun, in seconds since 1970.
    ended_s: float = 0.0  #: When the last one had ended.
    steps: deque[tuple[int, float, dict[str, float]]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Step, when it began, and its seconds by phase."""

    def add(self, step: int, began_s: float, seconds: dict[str, float]) -> None:
        """Take in a step."""
        if not self.first:
            self.first, self.began_s = step, began_s
        self.step, self.ended_s = step, began_s + sum(seconds.values())
        self.steps.append((step, began_s, seconds))

    def longest(self) -> float:
        """Return the seconds of the longest of its steps; 0 before the first."""
        return max((sum(seconds.values()) for _, _, seconds in self.steps), default=0.0)

    def phases(self) -> dict[str, float]:
        """Return the mean seconds of a step by phase."""
        found: dict[str, float] = {}
        for _, _, seconds in self.steps:
            for phase, value in seconds.items():
                found[phase] = found.get(phase, 0.0) + value / len(self.steps)
        return found


@final
@dataclass(frozen=True, slots=True)
class Slow:
    """A rank that the others wait for."""

    rank: int  #: Its number.
    phase: str  #: What takes longer, most of all.
    seconds: float  #: How long that takes, in a step.
    usual: float  #: How long it takes in the others: their median.


def left_behind(ranks: Mapping[int, RankState]) -> list[int]:
    """Return the ranks that have written nothing for long while others have: the run goes on without them."""
    ahead = max(ranks.values(), key=lambda rank: rank.ended_s, default=RankState())
    return [
        number
        for number, rank in sorted(ranks.items())
        if ahead.ended_s - max(rank.opened_s, rank.ended_s) > _BEHIND_S + 3 * (rank if rank.steps else ahead).longest()
    ]


def slowest(ranks: Mapping[int, RankState]) -> Slow | None:
    """Return the rank whose own work (data, forward, backward) takes a fifth longer than the others' median.

    Less than a twentieth of its step is no reason to wait for it.
    """
    phases = {number: rank.phases() for number, rank in ranks.items() if rank.steps}
    own = {number: sum(found.get(phase, 0.0) for phase in _OWN) for number, found in phases.items()}
    if len(own) < 2:
        return None
    number = max(own, key=lambda number: own[number])
    usual = _median(value for other, value in own.items() if other != number)
    if own[number] <= 1.2 * usual or own[number] - usual <= 0.05 * sum(phases[number].values()):
        return None
    others = {
        phase: _median(found.get(phase, 0.0) for other, found in phases.items() if other != number) for phase in _OWN
    }
    why = max(_OWN, key=lambda phase: phases[number].get(phase, 0.0) - others[phase])
    return Slow(number, why, phases[number].get(why, 0.0), others[why])


def _median(values: Iterable[float]) -> float:
    found = sorted(values)
    return found[len(found) // 2]
