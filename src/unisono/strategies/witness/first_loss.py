"""Whether the loss function computes the same on every rank: looked at once, in the first step of a launch.

Each rank calls it for the micro-batch of replica 0 too. What that gives rides in the report that the ranks exchange in
every step anyway. Only where two losses differ the ranks meet once more, and tell each other what the function reads.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from torch import Tensor

from unisono.data.batches import duplicated
from unisono.data.same_samples import EQUAL_DATA, parts_of_sample
from unisono.errors import StepError
from unisono.strategies.base import StrategyContext
from unisono.strategies.parts.backward import key_generators

_MOST_NAMED = 3
_UNKNOWN = (
    "No variable that it reads differs: it may ask for the rank (run.world.rank, RANK), the host's name, the process's "
    "number or the clock"
)


@final
class FirstLoss:
    """The loss of replica 0, as this rank computes it.

    Args:
        context: Where the strategy works.

    Attributes:
        is_over: Whether this launch has computed it, or never will.
        fetch: Returns the micro-batch of a step and replica, whoever computes it; None: there is nothing to compare.
        reads: Returns what the loss function reads, values as texts, by name.
    """

    def __init__(self, context: StrategyContext) -> None:
        self._context, self._own, self.is_over = context, 0, context.transport.world_size == 1
        self._micro: Any = None
        self.fetch: Callable[[int, int], Any] | None = None
        self.reads: Callable[[], Mapping[str, str]] = dict

    def compute(self, key: Sequence[int], function: Callable[[Any], Any], micro: Any, own: float | None) -> None:
        """Compute the loss of replica 0, at most once in a launch; generators are left anywhere.

        Args:
            key: Step, replica 0, and number of the update.
            function: The loss function, as a step calls it.
            micro: This rank's own first micro-batch.
            own: Its loss; None: the function returns something else. Its graph is gone: there is one at a time.
        """
        context, fetch, self.fetch, self.is_over = self._context, self.fetch, None, True
        if fetch is None or own is None:
            return
        if context.placement[context.transport.rank].start > 0:
            micro = fetch(key[0], 0)
            key_generators(context.seed, key)
            own = number_of(function(duplicated(micro)[0]))
        self._micro = micro
        if own is not None:
            self._own = int(np.float64(own).view(np.uint64))

    def tell(self) -> int:
        """Return the bits of that loss, once; 0 where it is not known, or 0."""
        told, self._own = self._own, 0
        return told

    def compare(self, step: int, told: Sequence[int]) -> None:
        """Return if all ranks that have told a loss have told the same one; else collective.

        Raises:
            StepError: They have not.
        """
        micro, self._micro = self._micro, None
        if not any(told):
            return
        known = [rank for rank, bits in enumerate(told) if bits]
        other = next((rank for rank in known if told[rank] != told[known[0]]), None)
        if other is None:
            return
        own = [parts_of_sample(micro), dict(self.reads())]
        every, first = self._context.transport.all_gather_json(own), known[0]
        (data, here), (others, there) = every[first], every[other]
        if data != others:
            raise StepError(
                f"step {step}: replica 0 has other samples on rank {other} than on rank {first}. Hint: {EQUAL_DATA}."
            )
        names = [name for name in here if name in there and here[name] != there[name]][:_MOST_NAMED]
        reads = f"It reads {', '.join(_words(name, here[name], there[name]) for name in names)}" if names else _UNKNOWN
        losses: list[float] = np.array([told[first], told[other]], np.uint64).view(np.float64).tolist()
        raise StepError(
            f"step {step}: the loss of replica 0 is {losses[0]:.9g} on rank {first} and {losses[1]:.9g} on rank "
            f"{other}, with the same samples, weights and random numbers: the loss function depends on the worker that "
            f"calls it. {reads}. Hint: take what differs from batch.step or from the samples, and draw from torch's "
            "own generators; `unisono doctor SCRIPT` names lines with the rank or the clock."
        )


def _words(name: str, here: str, there: str) -> str:
    kind = here.partition(":")[0]
    return f"`{name}` ({kind}, not the same)" if kind.startswith("a ") else f"`{name}` ({here} and {there})"


def number_of(found: Any) -> float | None:
    """Return a loss as a number; None for what is none."""
    return float(found.item()) if isinstance(found, Tensor) and found.numel() == 1 and not found.is_complex() else None
