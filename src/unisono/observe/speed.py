"""How fast a run trains, in samples per second (pure): the one definition for bar, lines, live view, summary, report.

The speed of a run is what goes through by the clock: all that happens between the first step's beginning and the last
one's end counts, evaluations, checkpoints and the body of the program's loop too. Beside it stands the speed within
steps, which leaves these out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

WINDOW = 50
"""Steps behind a speed that is called ``now``; one that is called ``mean`` is over all steps of a launch."""

WITHIN = ("data", "forward", "backward", "reduce", "update")
"""The phases (`observe.phases.PHASES`) that lie within a step."""

_WORTH_TELLING = 1.5
"""So many times as fast within steps as by the clock."""


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
