"""What a run costs: time in steps, peak memory and bytes sent of every rank, for ``result.json``."""

import resource
import time
from typing import Any, final

from unisono.collectives.transport import Transport


@final
class Usage:
    """Adds up the steps of this process."""

    def __init__(self) -> None:
        self._num_samples, self._num_steps, self._seconds, self._began = 0, 0, 0.0, 0.0

    def begin(self) -> None:
        """A step begins."""
        self._began = time.perf_counter()

    def end(self, num_samples: int) -> None:
        """It ends; the whole batch had so many samples."""
        self._num_samples += num_samples
        self._num_steps += 1
        self._seconds += time.perf_counter() - self._began

    def summary(self, transport: Transport) -> dict[str, Any]:
        """Return samples per second in steps, and each rank's peak memory and bytes sent per step; collective.

        Args:
            transport: Joins the ranks.
        """
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
        told = transport.all_gather_json([peak, transport.bytes_sent // max(1, self._num_steps)])
        return {
            "samples_per_s": round(self._num_samples / self._seconds, 1) if self._seconds else None,
            "peak_memory_bytes": [rank[0] for rank in told],
            "bytes_sent_per_step": [rank[1] for rank in told],
        }
