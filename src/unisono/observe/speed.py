"""How fast a run trains, and which rank is slow (pure): the one definition for bar, lines, live view, summary, report.

The speed of a run is what goes through by the clock: all that happens between the first step's beginning and the last
one's end counts, evaluations, checkpoints and the body of the program's loop too. Beside it stands the speed within
steps, which leaves these out.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from unisono.system.words import counted, spell_seconds

WINDOW = 50
"""Steps behind a speed that is called ``now``; one that is called ``mean`` is over all steps of a launch."""

WITHIN = ("data", "forward", "backward", "reduce", "update")
"""The phases (`observe.phases.PHASES`) that lie within a step."""

_WORTH_TELLING = 1.5
"""So many times as fast within steps as by the clock."""

OWN = ("data", "forward", "backward")
"""Phases in which a rank waits for no other."""

_SLOWER = 1.1
"""So many times as long as the other ranks' median is slow; noise is less."""

_WORTH_WAITING = 0.05
"""Less than this share of a rank's step is no reason to wait for it."""


@final
@dataclass(frozen=True, slots=True)
class Speed:
    """Samples per second."""

    by_clock: float  #: Of all the time.
    within: float  #: Of the time within steps; never less.

    @property
    def outside(self) -> float:
        """The share of the time, 0 to 1, that is not within steps."""
        return 1 - self.by_clock / self.within

    @property
    def is_held_up(self) -> bool:
        """Whether so much of the time is outside of steps that it is to be told."""
        return self.within > _WORTH_TELLING * self.by_clock

    def spell(self) -> str:
        """Return both in words: ``412 samples/s (1,030 in steps)``."""
        return f"{self.by_clock:,.0f} samples/s ({self.within:,.0f} in steps)"

    def spell_outside(self) -> str:
        """Return in words where the time goes, where that is to be told; empty where it is not."""
        return f"{self.outside:.0%} of the time is outside of steps" if self.is_held_up else ""


def seconds_within(seconds: Mapping[str, float]) -> float:
    """Return how long a step took, given the seconds of its phases by name; those between steps are left out."""
    return sum(seconds.get(phase, 0.0) for phase in WITHIN)


def speed_of(steps: Iterable[tuple[int, float, float]]) -> Speed | None:
    """Return the speed of steps; None where they took no time.

    Args:
        steps: Each as (samples of its batch, seconds from the end of the step before, seconds within it).
    """
    samples, by_clock, within = 0, 0.0, 0.0
    for size, passed, took in steps:
        samples, by_clock, within = samples + size, by_clock + passed, within + took
    if not samples or within <= 0:
        return None
    return Speed(samples / max(by_clock, within), samples / within)


def rates(speed: Speed | None) -> dict[str, float | None]:
    """Return a speed as ``result.json`` holds it."""
    told = (None, None) if speed is None else (round(speed.by_clock, 1), round(speed.within, 1))
    return dict(zip(("samples_per_s", "samples_per_s_within"), told, strict=True))


def speed_in(result: Mapping[str, Any]) -> Speed | None:
    """Return the mean speed that a ``result.json`` tells; None where it tells none. Older ones know it within steps."""
    by_clock = result.get("samples_per_s")
    if not isinstance(by_clock, int | float) or not by_clock > 0:
        return None
    within = result.get("samples_per_s_within", by_clock)
    return Speed(float(by_clock), max(float(within), float(by_clock)))


@final
@dataclass(frozen=True, slots=True)
class Slow:
    """A rank that the others wait for."""

    rank: int  #: Its number.
    phase: str  #: What takes longer, most of all.
    seconds: float  #: How long its own work takes for one replica, in the median step.
    usual: float  #: How long that takes in the other ranks: their median.

    @property
    def more(self) -> float:
        """By which share it takes longer: 0.1 is a tenth."""
        return self.seconds / self.usual - 1

    def spell(self) -> str:
        """Return it in words: ``rank 1 is slow: 12 ms per replica, 20% above the other ranks' median, ...``."""
        return (
            f"rank {self.rank} is slow: {spell_seconds(self.seconds)} per replica, {self.more:.0%} above the other "
            f"ranks' median, most of it in {self.phase}"
        )


def spell_sharing(local_workers: int, cores: int) -> str:
    """Return in words that the ranks of a host take turns on its cores, so that none is slow by itself; else nothing.

    Args:
        local_workers: Ranks on the host.
        cores: Cores that they may use together; 0: unknown.
    """
    return (
        f"{local_workers} workers share {counted(cores, 'core')}: they take turns" if local_workers > cores > 0 else ""
    )


def slow_rank(steps: Mapping[int, Sequence[tuple[Mapping[str, float], int]]]) -> Slow | None:
    """Return the rank whose own work for one replica (`OWN`) takes at least a tenth longer than the others' median.

    What is true of one half of the steps alone is noise.

    Args:
        steps: For each rank its steps, each as (seconds by phase, replicas that it has computed; 0: nobody knows).
            Ranks with fewer steps than `WINDOW`, and those of which the replicas are unknown, are left out.
    """
    known = {
        rank: found for rank, found in steps.items() if len(found) >= WINDOW and all(replicas for _, replicas in found)
    }
    if len(known) < 2:
        return None
    rank = max(known, key=lambda rank: _median(known[rank], OWN))
    own, usual = _beside_others(known, rank, OWN)
    halves = (
        {rank: found[: len(found) // 2] for rank, found in known.items()},
        {rank: found[len(found) // 2 :] for rank, found in known.items()},
    )
    is_slow = all(mine >= _SLOWER * theirs > 0 for mine, theirs in (_beside_others(half, rank, OWN) for half in halves))
    whole = statistics.median(sum(seconds.values()) / replicas for seconds, replicas in known[rank])
    if not is_slow or own < _SLOWER * usual or own - usual <= _WORTH_WAITING * whole:
        return None

    def longer(phase: str) -> float:
        mine, theirs = _beside_others(known, rank, [phase])
        return mine - theirs

    return Slow(rank, max(OWN, key=longer), own, usual)


def _beside_others(
    steps: Mapping[int, Sequence[tuple[Mapping[str, float], int]]], rank: int, phases: Sequence[str]
) -> tuple[float, float]:
    """Return a rank's median seconds of some phases for one replica, and the others' median of these."""
    found = {each: _median(mine, phases) for each, mine in steps.items()}
    return found[rank], statistics.median(value for other, value in found.items() if other != rank)


def _median(steps: Sequence[tuple[Mapping[str, float], int]], phases: Sequence[str]) -> float:
    """Return the median seconds of some phases for one replica."""
    return statistics.median(sum(seconds.get(phase, 0.0) for phase in phases) / replicas for seconds, replicas in steps)
