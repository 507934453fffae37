"""What a run costs: time in steps and phases, peak memory and bytes sent of every rank, for ``result.json``."""

import resource
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, final

from unisono.collectives.transport import Transport
from unisono.observe.phases import PHASES
from unisono.observe.speed import WINDOW, Speed, rates, speed_of


@final
class Usage:
    """Adds up the steps of this process."""

    def __init__(self) -> None:
        self._num_samples, self._num_steps, self._seconds, self._began = 0, 0, 0.0, 0.0
        self._passed, self._ended = 0.0, time.perf_counter()  # seconds in loops up to the last step's end, and when
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=WINDOW)

    def spent(self) -> dict[str, float]:
        """Return what this process has spent: ``steps``, their ``samples``, and ``step_s``, the seconds in them."""
        return {"steps": self._num_steps, "samples": self._num_samples, "step_s": round(self._seconds, 6)}

    def start(self) -> None:
        """A loop over steps begins."""
        self._ended = time.perf_counter()

    def begin(self) -> None:
        """A step begins."""
        self._began = time.perf_counter()

    def end(self, num_samples: int, *, is_first: bool = True) -> None:
        """It ends; the whole batch had so many samples, which only the `is_first` update of a batch counts."""
        if is_first:
            self._num_samples += num_samples
            self._num_steps += 1
        passed = self._lap()
        seconds = self._ended - self._began
        self._seconds += seconds
        self._recent.append((num_samples if is_first else 0, passed, seconds))

    def _lap(self) -> float:
        """Return the seconds since the last step's end, or the loop's beginning."""
        now = time.perf_counter()
        passed, self._ended = now - self._ended, now
        self._passed += passed
        return passed

    def now(self) -> Speed | None:
        """Return the speed of this process's last steps; None before the first one."""
        return speed_of(self._recent)

    def summary(self, transport: Transport, phases: Sequence[int]) -> dict[str, Any]:
        """Return the mean speed of the slowest rank, and all ranks' costs; `phases` are nanoseconds; collective."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
        sent = transport.bytes_sent // max(1, self._num_steps)
        self._lap()
        told = transport.all_gather_json([peak, sent, list(phases), self._seconds, self._passed])
        # hosts time by themselves; all must tell the same
        speed = speed_of([(self._num_samples, max(rank[4] for rank in told), max(rank[3] for rank in told))])
        return {
            **rates(speed),
            "peak_memory_bytes": [rank[0] for rank in told],
            "bytes_sent_per_step": [rank[1] for rank in told],
            "phases_s": {name: [round(rank[2][i] / 1e9, 6) for rank in told] for i, name in enumerate(PHASES)},
        }
