"""The training batches of a run that reads a stream: what `Loader` is for data sets with numbers."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, final

import numpy as np

from unisono.collectives.placement import parts_of
from unisono.collectives.transport import Transport
from unisono.data.lengths import Indices
from unisono.data.loader import Collate, Fetcher, Task, Transform, refuse_iteration
from unisono.data.plans.batch_schedule import BatchSchedule
from unisono.data.sources.item_bytes import handed, pack, unpack
from unisono.data.sources.stream import Items, Place, Reader, Stream, begin_pass
from unisono.errors import DataError, RankDivergence


class StreamBatch(NamedTuple):
    """One step's items."""

    step: int  #: 1-based.
    epoch: int  #: The pass, 0-based.
    numbers: Indices  #: int64 (n,): of the items in the pass, in the batch's order.
    micros: Iterator[Any]  #: This rank's micro-batches, made when they are asked for.
    chain: str  #: Hash over all items of the pass up to the last of these.


@final
class StreamLoader:
    """The batches of a stream, from the place on that a checkpoint holds; made by `Run.loader`.

    Args:
        stream: What is read.
        schedule: Items of each step, over all ranks.
        replicas: Parts of a batch.
        placement: The replicas of each rank.
        transport: Joins the ranks, which compare what they have read, or get it from the leader.
        seed: The run's seed.
        transform: Applied to each item that this rank hosts.
        collate: From a list of items to a micro-batch.
        tell: Told what resuming has cost.

    Attributes:
        done: Says the last step that is done.
        epochs: Passes after which no more batches come.
    """

    def __init__(
        self,
        stream: Stream,
        schedule: BatchSchedule,
        replicas: int,
        placement: Sequence[range],
        *,
        transport: Transport,
        seed: int,
        transform: Transform | None = None,
        collate: Collate | None = None,
        tell: Callable[[str], object] = str,
    ) -> None:
        self.stream, self.schedule, self.epochs, self._tell = stream, schedule, sys.maxsize, tell
        self.done: Callable[[], int] = int
        self.cuts: None = None  # nobody knows where its epochs end
        self._replicas, self._placement, self._transport, self._seed = replicas, placement, transport, seed
        self._held: dict[int, Any] = {}
        self._fetcher = Fetcher(_Held(self._held), seed, transform=transform, collate=collate)
        self._places: dict[int, Place] = {0: Place()}

    def __len__(self) -> int:
        """Refuse: nobody knows."""
        raise TypeError(
            "a stream has no length, by which epochs are counted. Hint: count steps: fit(stream, max_steps=...), "
            "run.steps(loader, max_steps=...), intervals in steps."
        )

    def __iter__(self) -> NoReturn:
        """Refuse: batches belong to steps."""
        refuse_iteration()

    @property
    def described(self) -> dict[str, Any]:
        """What the score says of the data."""
        stream = self.stream
        return {
            "class": "Stream", "source": stream.name, "window": stream.window, "fingerprint": stream.fingerprint,
        }  # fmt: skip

    @property
    def passes(self) -> int:
        """Passes that are complete after the last step that is done."""
        return self._place.passes

    @property
    def _place(self) -> Place:
        done = self.done()
        return self._places[max(step for step in self._places if step <= done)]

    def state_dict(self) -> dict[str, Any]:
        """Return where the last batch that is done has ended."""
        return self._place._asdict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self._places = {0: Place(**state)}

    def batches(self, first_step: int, last_step: int) -> Iterator[StreamBatch]:
        """Yield the batches of the steps, to the end of the last pass; all ranks call it alike.

        Raises:
            RankDivergence: The ranks have read different items.
            DataError: The stream holds nothing, or has changed since it was left.
        """
        place, reader = self._place, None
        self._places = {first_step - 1: place}
        reads = self.stream.read == "all" or self._transport.rank == 0
        if reads:
            begin_pass(self.stream, place, seed=self._seed)
        step = first_step
        while step <= last_step and place.passes < self.epochs:
            if reader is None and reads:
                reader = Reader(self.stream, place, seed=self._seed)
                if reader.num_skipped:
                    self._tell(
                        f"finds its place in the stream: {reader.num_skipped:,} items were read again in "
                        f"{reader.skipped_s:.1f} s."
                    )
            items, now, end = self._taken(reader, step, self.schedule.size_of(step, place.passes))
            if not now.items:
                raise DataError(f"expected a stream with items, got none in pass {now.passes}. Hint: is it empty?")
            place = end or now
            reader = None if end else reader
            if not items.numbers:
                self._places[step - 1] = place
                continue
            self._places = {step - 1: self._places[step - 1], step: place}
            yield self._batch(step, items, now)
            step += 1
        self._held.clear()

    def _batch(self, step: int, items: Items, place: Place) -> StreamBatch:
        numbers, values = items
        parts = self._parts(len(numbers), self._transport.rank)
        self._held.clear()
        self._held.update({numbers[at]: values[at] for part in parts for at in part})
        own = np.array(numbers, dtype=np.int64)
        tasks = [Task(place.passes, own[part.start : part.stop]) for part in parts]
        return StreamBatch(step, place.passes, own, (self._fetcher[task] for task in tasks), place.chain)

    def _parts(self, num_items: int, rank: int) -> list[range]:
        """Return the parts of a batch that a rank hosts, none of them empty."""
        hosted = self._placement[rank]
        return [part for part in parts_of(num_items, self._replicas)[hosted.start : hosted.stop] if part]

    def _taken(self, reader: Reader | None, step: int, most: int) -> tuple[Items, Place, Place | None]:
        """Return the items of a step, the place behind them, and where the next pass begins if it is at its end."""
        if self.stream.read == "all":
            assert reader is not None
            items, now = reader.take(most), reader.place()
            self._compare(step, now)
            return items, now, reader.end() if reader.is_at_end else None
        everyones: list[bytes] = []
        if reader is not None:
            items, now = reader.take(most), reader.place()
            told = [items.numbers, [*now], [*reader.end()] if reader.is_at_end else None]
            for rank in range(self._transport.world_size):
                hosted = [items.values[at] for part in self._parts(len(items.numbers), rank) for at in part]
                everyones.append(pack([*told, hosted]))
        numbers, where, end, hosted = unpack(handed(self._transport, everyones))
        at_places = [at for part in self._parts(len(numbers), self._transport.rank) for at in part]
        values = [None] * len(numbers)
        for at, value in zip(at_places, hosted, strict=True):
            values[at] = value
        return Items(numbers, values), Place(*where), Place(*end) if end else None

    def _compare(self, step: int, place: Place) -> None:
        """Find out whether all ranks have read the same: a message of a few bytes in every step."""
        told = self._transport.all_gather_json([place.passes, place.items, place.chain])
        for rank, theirs in enumerate(told):
            if theirs != told[0]:
                what = "other items" if theirs[:2] == told[0][:2] else f"{theirs[1]:,} items in place of {told[0][1]:,}"
                raise RankDivergence(
                    f"rank {rank} has read {what} for step {step} than rank 0. Hint: every rank reads the whole stream "
                    "and takes its part of each batch; leave out what splits it by rank (split_by_node, "
                    "split_dataset_by_node, islice by rank), and draw at random only from torch, random and NumPy."
                )


@final
class _Held:
    """The items of a batch by their numbers, as `Fetcher` asks for them."""

    def __init__(self, items: dict[int, Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, number: int) -> Any:
        return self._items[number]
