"""The ranks of a watched run (pure): where the time of each goes, which is slow and why, which is gone."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from unisono.observe.speed import WINDOW, Slow, slow_rank

_BEHIND_S = 2.0
"""Ranks write what they took once a second; so much more, and three steps, is too long."""


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
    steps: deque[tuple[int, float, dict[str, float], int]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Step, when it began, its seconds by phase, and how many replicas were computed in it (0: unknown)."""

    def add(self, step: int, began_s: float, seconds: dict[str, float], replicas: int) -> None:
        """Take in a step."""
        if not self.first:
            self.first, self.began_s = step, began_s
        self.step, self.ended_s = step, began_s + sum(seconds.values())
        self.steps.append((step, began_s, seconds, replicas))

    def longest(self) -> float:
        """Return the seconds of the longest of its steps; 0 before the first."""
        return max((sum(seconds.values()) for _, _, seconds, _ in self.steps), default=0.0)

    def phases(self) -> dict[str, float]:
        """Return the mean seconds of a step by phase."""
        found: dict[str, float] = {}
        for _, _, seconds, _ in self.steps:
            for phase, value in seconds.items():
                found[phase] = found.get(phase, 0.0) + value / len(self.steps)
        return found


def left_behind(ranks: Mapping[int, RankState]) -> list[int]:
    """Return the ranks that have written nothing for long while others have: the run goes on without them."""
    ahead = max(ranks.values(), key=lambda rank: rank.ended_s, default=RankState())
    return [
        number
        for number, rank in sorted(ranks.items())
        if ahead.ended_s - max(rank.opened_s, rank.ended_s) > _BEHIND_S + 3 * (rank if rank.steps else ahead).longest()
    ]


def slowest(ranks: Mapping[int, RankState]) -> Slow | None:
    """Return the rank that is slow over its last steps, as `slow_rank` says."""
    return slow_rank({
        number: [(seconds, replicas) for _, _, seconds, replicas in rank.steps] for number, rank in ranks.items()
    })  # fmt: skip
