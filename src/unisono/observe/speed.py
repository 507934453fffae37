"""How fast a run trains, in samples per second (pure): the one definition behind bar, live view, summary and report.

Only the time within steps counts. Start-up, evaluations and checkpoints do not: they are told apart, in seconds.
"""

from collections.abc import Iterable

WINDOW = 50
"""Steps behind a speed that is called ``now``; one that is called ``mean`` is over all steps of a launch."""


def samples_per_s(steps: Iterable[tuple[int, float]]) -> float | None:
    """Return samples per second of steps, each (samples of its batch, seconds); None where they took no time."""
    samples, seconds = 0, 0.0
    for size, took in steps:
        samples, seconds = samples + size, seconds + took
    return samples / seconds if seconds > 0 else None
