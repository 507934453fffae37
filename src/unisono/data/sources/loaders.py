"""What `Run.loader` returns for what it is given, and which steps a run has by it."""

import sys
from collections.abc import Iterator
from typing import Any

from unisono.data.datasets import MapStyle
from unisono.data.loader import Collate, Fetcher, Loader, Transform, sampler_of
from unisono.data.plans.batch_schedule import BatchSchedule
from unisono.data.plans.plan import Plan
from unisono.data.sampler import Indices
from unisono.data.sources.stream import Stream
from unisono.data.sources.stream_loader import StreamLoader
from unisono.errors import ConfigError

AnyLoader = Loader | StreamLoader
AnyDataset = MapStyle | Stream


def make_loader(
    run: Any,
    dataset: Any,
    schedule: BatchSchedule,
    *,
    transform: Transform | None,
    collate: Collate | None,
    shuffle: bool,
    num_workers: int,
    prefetch: int,
    plan: Plan | None,
    last: str,
) -> AnyLoader:
    """Return the loader of a run; see `Run.loader`."""
    if not isinstance(dataset, Stream):
        if (transform or collate) and not getattr(dataset, "is_keyed_singly", True):
            raise ConfigError(
                f"a {type(dataset).__name__} changes whole micro-batches at random, which transform= and collate= take "
                "the place of: it would be trained on unchanged. Hint: do both in transform=, or none."
            )
        fetcher = Fetcher(dataset, run.seed, transform=transform, collate=collate)
        sampler = sampler_of(dataset, schedule, run.replicas, seed=run.seed, shuffle=shuffle, plan=plan, last=last)
        return Loader(sampler, fetcher, run.placement[run.world.rank], num_workers=num_workers, prefetch=prefetch)
    if run.strategy.name != "exact":
        raise ConfigError(
            f"a stream is read in step by all ranks, which the strategy {run.strategy.name!r} does not promise. "
            "Hint: Run(strategy='exact'), or data with a length."
        )
    if num_workers or plan is not None or not shuffle or last != "short":
        raise ConfigError(
            "a stream is read in its own order, by each rank itself, and its end is not known before it comes: "
            "num_workers=, plan=, shuffle= and last= do not fit it. "
            "Hint: leave them out; Stream(window=...) says how far items are shuffled."
        )
    loader = StreamLoader(
        dataset, schedule, run.replicas, run.placement, transport=run.transport, seed=run.seed, transform=transform,
        collate=collate, tell=run._record.tell,
    )  # fmt: skip
    run.register("stream", loader)
    return loader


def last_step(loader: AnyLoader, epochs: int | None, max_steps: int | None, limit: int | None = None) -> int:
    """Return the last step of so many epochs, or of the least limit; of a stream nobody knows it but by a limit."""
    if epochs is None and max_steps is None:
        hint = "run.steps(loader, epochs=1), trainer.fit(..., epochs=1)"
        raise ConfigError(f"expected epochs= or max_steps=, got neither. Hint: {hint}.")
    whole = sys.maxsize
    if isinstance(loader, StreamLoader):
        loader.epochs = epochs or sys.maxsize
    elif epochs is not None:
        whole = loader.steps_of(epochs)
    return min([whole, *filter(None, (max_steps, limit))])


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
        epoch, batch = loader.sampler.epoch_with_batch(step)
        yield step, epoch, batch[:], None, ""
