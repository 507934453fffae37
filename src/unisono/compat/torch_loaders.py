"""What a torch ``DataLoader`` says about its data, taken over into a run: data set, order, batch size, collation."""

from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
    default_collate,
)

from unisono.data.lengths import Indices
from unisono.data.plans.plan import Order
from unisono.data.plans.weighted import Weighted
from unisono.data.sampler import permute
from unisono.determinism.seeding import mix
from unisono.errors import ConfigError


class Told(NamedTuple):
    """What a run needs of a torch loader."""

    dataset: Any  #: Map-style.
    batch_size: int  #: Of one process, as the program has written it.
    shuffle: bool  #: Whether each epoch has a random order.
    drop_last: bool  #: Whether an epoch's last samples, fewer than a batch, are left out.
    plan: Weighted | None  #: An order of its own, if it has one.
    options: dict[str, Any]  #: More for `Run.loader`.
    is_plain: bool  #: Whether torch's own collation makes the batches.


class FilledOrder:
    """An epoch of which the last samples are left out, or to which its first ones are added once more.

    Args:
        total: Samples of the data set.
        num_samples: Places of an epoch.
        seed: The run's seed.
        shuffle: Whether each epoch has a random order.
    """

    def __init__(self, total: int, num_samples: int, *, seed: int, shuffle: bool) -> None:
        self.num_samples, self._total, self._seed, self._shuffle = num_samples, total, seed, shuffle
        self.score: dict[str, Any] = {"order": "filled", "num_samples": num_samples, "shuffle": shuffle}

    def at(self, epoch: int, start: int, stop: int) -> Indices:
        """See `Order.at`: but for its end, the order that a run has without a plan."""
        places = np.arange(start, stop) % self._total
        return permute(places, self._total, mix(self._seed, "order", epoch)) if self._shuffle else places


class Filled:
    """The plan of `FilledOrder`; `num_samples` places."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def order(self, source: Any, *, seed: int, shuffle: bool) -> Order:
        """See `Plan.order`."""
        return FilledOrder(len(source), self._num_samples, seed=seed, shuffle=shuffle)


def places_of(num_samples: int, batch_size: int, processes: int, leaves: int, *, drop_last: bool, even: bool) -> int:
    """Return how many places an epoch has, in whole batches of all processes as accelerate has them.

    Args:
        num_samples: Of the data set.
        batch_size: Of one process.
        processes: V.
        leaves: Micro-batches of a step: those of all processes, as often as gradients are accumulated.
        drop_last: Whether samples that make no whole batches are left out.
        even: Whether whole batches are filled up; else each sample comes once.

    Raises:
        ConfigError: A rank might have nothing to compute in the epoch's last step.
    """
    places, per_turn = num_samples, batch_size * processes
    if drop_last and num_samples >= per_turn:
        places -= num_samples % per_turn
    elif even and processes > 1:
        places += -num_samples % per_turn
    left = places % (batch_size * leaves)
    if 0 < left < leaves and not even:
        raise ConfigError(
            f"the epoch's last step has {left} samples for {leaves} micro-batches, and a rank without one cannot take "
            "part. Hint: even_batches=True, which fills it up with the epoch's first samples; or drop_last=True."
        )
    return places + leaves - left if 0 < left < leaves else places


def told_by(loader: DataLoader[Any]) -> Told:
    """Return what a torch loader says; `ConfigError` for what has no exact counterpart, with what to do instead."""
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            f"{type(loader.dataset).__name__} has no numbered samples, so no rank can tell which ones are its own. "
            "Hint: a map-style data set; or a run's own loop over run.loader(unisono.Stream(source), ...)."
        )
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        kind = "no batch size" if loader.batch_sampler is None else f"a {type(loader.batch_sampler).__name__}"
        raise ConfigError(
            f"expected a DataLoader with batch_size=, got one with {kind}: which samples a step sees must be known "
            "from its number. Hint: batch_size=, with shuffle= or a WeightedRandomSampler."
        )
    sampler, plan = loader.sampler, None
    if isinstance(sampler, WeightedRandomSampler) and sampler.replacement:
        plan = Weighted(sampler.weights.numpy(), num_samples=sampler.num_samples)
    elif isinstance(sampler, RandomSampler):
        if sampler.replacement or sampler.num_samples != len(loader.dataset):  # type: ignore[arg-type]
            raise ConfigError(
                "expected a RandomSampler over all samples, each once. Hint: shuffle=True; or a WeightedRandomSampler "
                "with equal weights, which draws with replacement."
            )
    elif not isinstance(sampler, SequentialSampler):
        raise ConfigError(
            f"a {type(sampler).__name__} draws an order of its own, in which no step is known from its number. "
            "Hint: shuffle=True, or a WeightedRandomSampler; or the order in the data set (torch's Subset)."
        )
    is_plain = loader.collate_fn is default_collate
    options: dict[str, Any] = {} if is_plain else {"collate": loader.collate_fn}
    if loader.num_workers:
        options |= {"num_workers": loader.num_workers, "prefetch": loader.prefetch_factor or 2}
    shuffle = not isinstance(sampler, SequentialSampler)
    return Told(loader.dataset, loader.batch_size, shuffle, loader.drop_last, plan, options, is_plain)
