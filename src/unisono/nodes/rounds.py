"""Which hosts run the next round, and when it begins (pure): the host that keeps the store decides alone.

In: who asks to take part, who shows signs of life, and how late it is on this host's own steady clock. Out: the hosts
of the round, or that it is too early. Knows no store; no other host's clock matters.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

LAST_CALL_S = 3.0
"""For more hosts than the fewest; who comes later joins between two steps."""


@final
@dataclass(slots=True)
class RecentBeats:
    """Who has been heard lately, by beats that change."""

    silence_s: float  #: Longest silence of the living; 0 allows any.
    _heard: dict[int, tuple[Any, float, bool]] = field(default_factory=dict)

    def hear(self, number: int, beat: Any, now_s: float) -> None:
        """Take note of what a host shows now."""
        before = self._heard.get(number)
        if before is None or before[0] != beat:
            self._heard[number] = (beat, now_s, before is not None)

    def is_silent(self, number: int, now_s: float) -> bool:
        """Whether a host has shown nothing new for too long."""
        return bool(self.silence_s) and number in self._heard and now_s - self._heard[number][1] > self.silence_s

    def is_alive(self, number: int, now_s: float) -> bool:
        """Whether a beat of it has been seen to change, and not too long ago."""
        return self._heard.get(number, (None, 0.0, False))[2] and not self.is_silent(number, now_s)

    def forget(self) -> None:
        """Begin anew: we have not listened ourselves."""
        self._heard.clear()


@final
@dataclass(frozen=True, slots=True)
class Told:
    """What the keeper tells all: the last round, and whether it gathers for another one."""

    index: int = -1  #: Of the round; -1 before the first.
    #: Number of each host and the number of its request, in the order of their places.
    members: tuple[tuple[int, int], ...] = ()
    is_gathering: bool = False  #: Whether hosts are wanted.
    #: The last request of each host that a round before this one has answered.
    answered: tuple[tuple[int, int], ...] = ()

    def packed(self) -> list[Any]:
        """Return it in JSON's types."""
        return [self.index, list(map(list, self.members)), self.is_gathering, list(map(list, self.answered))]

    @classmethod
    def unpacked(cls, value: Sequence[Any] | None) -> "Told":
        """Return what `packed` has packed; None stands for nothing told yet."""
        if value is None:
            return cls()
        members, answered = (tuple((int(number), int(request)) for number, request in part) for part in value[1::2])
        return cls(int(value[0]), members, bool(value[2]), answered)

    def place_of(self, number: int, request: int) -> int | None:
        """Return a host's place in the round, None if its request is not answered by it."""
        return self.members.index((number, request)) if (number, request) in self.members else None

    def waiting(self, requests: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the requests that no round has answered; a request of 0 has been taken back."""
        last = self.all_answered
        return [(number, request) for number, request in requests if request > last.get(number, 0)]

    @property
    def all_answered(self) -> dict[int, int]:
        """The last request of each host that has been answered, by this round too.

        A host that is lost stays in it: its request would be taken for that of a newcomer.
        """
        return {**dict(self.answered), **dict(self.members)}


@final
class Gathering:
    """One gathering, from its first look to its round."""

    def __init__(self, min_nodes: int, max_nodes: int, keeper: int, before: Told) -> None:
        self._min, self._max, self._keeper, self._before = min_nodes, max_nodes, keeper, before
        self._enough_since_s: float | None = None

    def look(self, now_s: float, requests: Sequence[tuple[int, int]]) -> Told | None:
        """Return the round that begins now, None as long as it is too early."""
        sat = [number for number, _ in self._before.members]
        here = {number for number, _ in requests}
        if self._keeper not in here or len(requests) < self._min:
            self._enough_since_s = None
            return None
        if self._enough_since_s is None:
            self._enough_since_s = now_s
        # Those of the last round come first, and are given time to come back.
        is_whole = len(requests) >= self._max and set(sat) <= here
        if not is_whole and now_s - self._enough_since_s < LAST_CALL_S:
            return None
        chosen = sorted(requests, key=lambda one: (one[0] != self._keeper, one[0] not in sat, one[0]))[: self._max]
        return Told(self._before.index + 1, tuple(chosen), answered=tuple(self._before.all_answered.items()))
