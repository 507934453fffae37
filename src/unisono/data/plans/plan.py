"""What an order of samples has to answer, so that any step of it is known from its number (pure)."""

from typing import Any, Protocol, runtime_checkable

from unisono.data.lengths import Indices


@runtime_checkable
class Order(Protocol):
    """Samples by place. The places of an epoch are ``range(num_samples)``; batches are cut from them in this order.

    A pure function: the same on every rank, in every process, and in a run that is resumed years later.

    Attributes:
        num_samples: Places of one epoch.
        score: What distinguishes this order from others, in JSON's types; part of the run's score.
    """

    num_samples: int
    score: dict[str, Any]

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the numbers of the samples at the places ``start..stop - 1``: int64 (stop - start,)."""


@runtime_checkable
class HasEpochs(Protocol):
    """An order whose samples count their passes one by one: random transforms are keyed by these."""

    def epochs_at(self, epoch: int, start: int, stop: int) -> Indices:
        """Return how often the sample at each place has come before: int64 (stop - start,)."""


@runtime_checkable
class Plan(Protocol):
    """What `Run.loader` takes as ``plan=``, and what a data set may have as its attribute ``plan``."""

    def order(self, source: Any, *, seed: int, shuffle: bool) -> Order:
        """Return the order for a data set.

        Raises:
            DataError: The plan does not fit the data set.
        """
