"""How fast a run trains, in samples per second (pure): the one definition for bar, live view, summary and report.

Only the time within steps counts. Start-up, evaluations, checkpoints and the body of the program's loop do not.
"""

from collections.abc import Iterable, Mapping

WINDOW = 50
"""Steps behind a speed that is called ``now``; one that is called ``mean`` is over all steps of a launch."""

WITHIN = ("data", "forward", "backward", "reduce", "update")
"""The phases (`observe.phases.PHASES`) that lie within a step."""


def seconds_within(seconds: Mapping[str, float]) -> float:
    """Return how long a step took, given the seconds of its phases by name; those between steps are left out."""
    return sum(seconds.get(phase, 0.0) for phase in WITHIN)


def samples_per_s(steps: Iterable[tuple[int, float]]) -> float | None:
    """Return samples per second of steps, each (samples of its batch, seconds); None where they took no time."""
    samples, seconds = 0, 0.0
    for size, took in steps:
        samples, seconds = samples + size, seconds + took
    return samples / seconds if seconds > 0 else None
