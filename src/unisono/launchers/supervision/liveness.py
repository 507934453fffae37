"""Who is silent and what does not move: a pure rule over readings and a clock.

In: `Reading`s of the workers, now and then. Out: `Silent`, `Back` and `Still`. Sends nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from unisono.system.heartbeat import Reading

# Looks further apart than this: we ourselves were stopped or the machine slept, and nobody is to blame.
_OWN_GAP_S = 2.5
_WORTH_TELLING_S = 3.0
_EARLY_S = 5.0


@dataclass(frozen=True, slots=True)
class Silent:
    """A worker has shown no sign of life for a heartbeat's time; `count` such times by now."""

    rank: int
    seconds: float
    count: int


@dataclass(frozen=True, slots=True)
class Back:
    """A worker shows signs of life again."""

    rank: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Still:
    """All workers live, but no worker has done anything; `is_early`: for a short time, which a long step takes too."""

    seconds: float
    is_early: bool = False


Finding = Silent | Back | Still


@dataclass(slots=True)
class _Seen:
    beats: int
    since_s: float
    count: int = 0


@final
@dataclass(slots=True)
class Liveness:
    """The rule with its memory.

    Args:
        heartbeat_s: Longest silence; 0 allows any.
        hang_s: Longest time without progress before the first report, which doubles for the next; 0 reports none. Where
            it is longer than 5 s, those are reported too, as early.
    """

    heartbeat_s: float
    hang_s: float
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _ticks: int = -1
    _moved_s: float = 0.0
    _next_report_s: float = 0.0
    _is_early_due: bool = False
    _last_look_s: float | None = None

    def look(self, now_s: float, readings: Mapping[int, Reading]) -> list[Finding]:
        """Take note of the running workers and return what is worth acting on.

        Args:
            now_s: CLOCK_MONOTONIC.
            readings: By rank, of all running workers.
        """
        if self._last_look_s is None or now_s - self._last_look_s > _OWN_GAP_S:
            self._seen.clear()
            self._ticks = -1
        self._last_look_s = now_s
        judged = {rank: reading for rank, reading in readings.items() if reading.is_joined}
        findings = [found for rank, reading in judged.items() for found in self._listen(now_s, rank, reading)]
        silent = any(now_s - self._seen[rank].since_s > _WORTH_TELLING_S for rank in judged)
        if not judged or silent:
            self._ticks = -1  # a silent worker explains that the others stand still
        elif (ticks := sum(reading.ticks for reading in judged.values())) != self._ticks:
            self._ticks, self._moved_s, self._next_report_s = ticks, now_s, self.hang_s
            self._is_early_due = self.hang_s > _EARLY_S
        elif self.hang_s and now_s - self._moved_s >= self._next_report_s:
            self._next_report_s *= 2
            findings.append(Still(now_s - self._moved_s))
        elif self._is_early_due and now_s - self._moved_s >= _EARLY_S:
            self._is_early_due = False
            findings.append(Still(now_s - self._moved_s, is_early=True))
        return findings

    def _listen(self, now_s: float, rank: int, reading: Reading) -> list[Finding]:
        seen = self._seen.setdefault(rank, _Seen(reading.beats, now_s))
        quiet_s = now_s - seen.since_s
        if reading.beats != seen.beats:
            self._seen[rank] = _Seen(reading.beats, now_s)
            return [Back(rank, quiet_s)] if quiet_s > _WORTH_TELLING_S or seen.count else []
        if self.heartbeat_s and quiet_s >= self.heartbeat_s * (seen.count + 1):
            seen.count += 1
            return [Silent(rank, quiet_s, seen.count)]
        return []
