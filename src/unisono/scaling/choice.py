"""Which of several measured settings to take: the fastest, unless a simpler one cannot be told from it (pure)."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from unisono.errors import ConfigError

MARGIN = 0.03
"""A setting that is not faster by more than this is not worth more processes."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One setting and how fast it was."""

    setting: dict[str, Any]  #: Names and values, as on the command line.
    processes: int  #: All that it keeps busy, loader processes and threads included.
    rates: list[float]  #: Samples per second of each run of it.

    @property
    def median(self) -> float:
        """Samples per second."""
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """From the slowest to the fastest run, over the median."""
        return (max(self.rates) - min(self.rates)) / self.median


def choose(candidates: Sequence[Candidate]) -> tuple[Candidate, str]:
    """Return the setting to take, and why.

    The fastest median wins; but a setting with fewer processes that is slower by no more than 3 %, or by no more than
    the runs of both settings scatter, is taken before it: the difference could not be shown.

    Raises:
        ConfigError: No candidates.
    """
    if not candidates:
        raise ConfigError("expected measured settings to choose from, got none.")
    fastest = max(candidates, key=lambda one: one.median)
    simpler = [one for one in candidates if one.processes < fastest.processes and _alike(one, fastest)]
    if simpler:
        chosen = min(simpler, key=lambda one: (one.processes, -one.median))
        return chosen, f"no slower than {spell(fastest.setting)} by what can be told, with fewer processes"
    others = [one for one in candidates if one is not fastest]
    if not others:
        return fastest, "the only one measured"
    second = max(others, key=lambda one: one.median)
    gain = fastest.median / second.median - 1
    if _alike(second, fastest):
        return fastest, f"{gain:.0%} before {spell(second.setting)}, which is within the scatter"
    return fastest, f"{gain:.0%} faster than {spell(second.setting)}"


def spell(setting: dict[str, Any]) -> str:
    """Return a setting as it is typed."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in setting.items())


def _alike(slower: Candidate, faster: Candidate) -> bool:
    return slower.median >= faster.median * (1 - max(MARGIN, min(slower.spread, faster.spread)))
