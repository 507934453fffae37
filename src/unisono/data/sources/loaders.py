"""What `Run.loader` returns for what it is given, and which steps a run has by it."""

import sys
from collections.abc import Iterator
from typing import Any

from unisono.data.loader import Collate, Fetcher, Loader, Transform, sampler_of
from unisono.data.plans.plan import Plan
from unisono.data.sampler import Indices
from unisono.data.sources.stream import Stream
from unisono.data.sources.stream_loader import StreamLoader
from unisono.errors import ConfigError

AnyLoader = Loader | StreamLoader


def make_loader(
    run: Any,
    dataset: Any,
    batch_size: int,
    *,
    transform: Transform | None,
    collate: Collate | None,
    shuffle: bool,
    num_workers: int,
    prefetch: int,
    plan: Plan | None,
) -> AnyLoader:
    """Return the loader of a run; see `Run.loader`."""
    hosted = run.placement[run.world.rank]
    if not isinstance(dataset, Stream):
        fetcher = Fetcher(dataset, run.seed, transform=transform, collate=collate)
        sampler = sampler_of(dataset, batch_size, run.replicas, seed=run.seed, shuffle=shuffle, plan=plan)
        return Loader(sampler, fetcher, hosted, num_workers=num_workers, prefetch=prefetch)
    if run.strategy.name != "exact":
        raise ConfigError(
            f"a stream is read in step by all ranks, which the strategy {run.strategy.name!r} does not promise. "
            "Hint: Run(strategy='exact'), or data with a length."
        )
    if num_workers or plan is not None or not shuffle:
        raise ConfigError(
            "a stream is read in its own order, by each rank itself: num_workers=, plan= and shuffle= do not fit it. "
            "Hint: leave them out; Stream(window=...) says how far items are shuffled."
        )
    loader = StreamLoader(
        dataset, batch_size, run.replicas, hosted, transport=run.transport, seed=run.seed, transform=transform,
        collate=collate, tell=run._record.tell,
    )  # fmt: skip
    run.register("stream", loader)
    return loader


def last_step(loader: AnyLoader, epochs: int, *limits: int | None) -> int:
    """Return the last step of so many epochs, or of the least limit; of a stream nobody knows it but by a limit."""
    if isinstance(loader, StreamLoader):
        loader.epochs, whole = epochs, sys.maxsize
    else:
        whole = epochs * len(loader)
    return min([whole, *filter(None, limits)])


def handed_out(
    loader: AnyLoader, first: int, last: int
) -> Iterator[tuple[int, int, Indices, Iterator[Any] | None, str]]:
    """Yield step, epoch, the batch's samples, a stream's micro-batches, and what the ledger says of a stream's samples.

    What has numbers is fetched apart, by `Loader.micro_batches`.
    """
    if isinstance(loader, StreamLoader):
        yield from loader.batches(first, last)
        return
    for step in range(first, last + 1):
        yield step, loader.sampler.epoch_of(step), loader.sampler.batch(step), None, ""
