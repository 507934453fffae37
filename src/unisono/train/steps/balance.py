"""Replicas move from slow ranks to fast ones, by the time they have taken: who computes, never what.

`place_by_times` and `Balance` are pure: whole numbers in, a placement out. All ranks see the same numbers in the report
of a step, so they decide alike without another message. `Balancer` does it in a run.
"""

import heapq
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast, final

from unisono.errors import ConfigError
from unisono.strategies.base import StrategyContext
from unisono.strategies.options import StrategyOptions
from unisono.train.steps.membership import Live

FEWEST, MOST = 16, 256
"""Steps that are looked at before replicas move."""
_LEAST_GAIN = 20  # a step is to get better by one part of so many


def place_by_times(replicas: int, times: Sequence[int]) -> list[range]:
    """Return the contiguous placement whose slowest rank is done soonest, at least one replica each.

    Args:
        replicas: At least as many as ranks.
        times: Of each rank, for one replica; above 0.

    Example:
        >>> place_by_times(8, [1, 4])
        [range(0, 7), range(7, 8)]
    """
    counts = [1] * len(times)
    ends = [(2 * time, rank) for rank, time in enumerate(times)]  # with one replica more than it has
    heapq.heapify(ends)
    for _ in range(replicas - len(times)):
        end, rank = ends[0]
        counts[rank] += 1
        heapq.heapreplace(ends, (end + times[rank], rank))
    starts = [sum(counts[:rank]) for rank in range(len(counts) + 1)]
    return [range(starts[rank], starts[rank + 1]) for rank in range(len(counts))]


@final
class Balance:
    """Says when replicas move, from what all ranks have measured in one step after the other.

    A decision takes the median of `FEWEST` steps, so a single slow one has no say. Replicas move only where the step's
    computing is forecast to get shorter by a twentieth. Every move doubles the steps that the next decision looks at,
    up to `MOST`, and a decision without a move halves them again: ranks whose speed wavers do not move all the time.
    """

    def __init__(self) -> None:
        self._length = FEWEST
        self._seen: list[list[int]] = []

    def note(self, placement: Sequence[range], busy_ns: Sequence[int]) -> list[range] | None:
        """Take what the ranks have measured in a step; return where replicas are from here on, None for no move.

        Args:
            placement: Of that step; the same since the last move.
            busy_ns: Time in which each rank has computed its replicas; nothing is noted where it is empty.
        """
        if len(placement) < 2 or len(busy_ns) != len(placement):
            return None
        self._seen.append([max(1, busy // len(part)) for busy, part in zip(busy_ns, placement, strict=True)])
        if len(self._seen) < self._length:
            return None
        times = [sorted(column)[len(column) // 2] for column in zip(*self._seen, strict=True)]
        self._seen = []
        found = place_by_times(placement[-1].stop, times)
        before, after = _longest(placement, times), _longest(found, times)
        moves = after * _LEAST_GAIN <= before * (_LEAST_GAIN - 1)
        self._length = min(MOST, self._length * 2) if moves else max(FEWEST, self._length // 2)
        return found if moves else None


def _longest(placement: Sequence[range], times: Sequence[int]) -> int:
    return max(len(part) * time for part, time in zip(placement, times, strict=True))


@final
class Balancer:
    """Moves the replicas of a run between two steps, where `--balance auto` asks for it.

    A change of the world begins it anew, on those that were there and on those that have joined: they look at it at the
    same place, before a step, so all have seen the same steps.
    """

    def __init__(self, options: StrategyOptions, setting: StrategyContext, live: Live | None) -> None:
        self.is_on = getattr(options, "balance", "none") == "auto"
        self._setting, self._live = setting, live
        self._balance, self._world = Balance(), None if live is None else live.world

    def refuse(self, why: str) -> None:
        """Refuse (`ConfigError`) a run in which replicas cannot move."""
        if self.is_on:
            raise ConfigError(f"balance 'auto' moves replicas between steps, and {why}. Hint: leave it out.")

    def data(self, strategy: Any, step: int, fetched: Any, fetch: Callable[[], Any]) -> Any:
        """Return the data from `step` on, where replicas have moved that of `fetch`; before every step, if `is_on`."""
        busy_ns, strategy.busy_ns = strategy.busy_ns, ()
        if self._live is not None and self._world is not self._live.world:
            self._world, self._balance = self._live.world, Balance()
            return fetched  # who computes the step sees to the rest
        placement, rank = cast(list[range], self._setting.placement), self._setting.transport.rank
        found = self._balance.note(placement, busy_ns)
        if found is None:
            return fetched
        if rank == 0:
            now, before = (",".join(str(len(part)) for part in parts) for parts in (found, placement))
            sys.stderr.write(f"unisono: step {step}: replicas of the ranks are {now} from here on, {before} before.\n")
        own, placement[:] = placement[rank], found
        strategy.begin_again(is_within=False)
        return fetched if placement[rank] == own else fetch()
