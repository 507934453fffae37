"""`Stream`: items that come in order and have no numbers, for `Run.loader`; and how a stream is read and found again.

Step s takes the next items, replica by replica. Every rank reads the whole stream, or the leader alone does, and
prepares only what it hosts. What was consumed is known by a count and a chain of hashes over the items, so a run that
is resumed finds its place, and notices a stream that has changed.
"""

import hashlib
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, final

import numpy as np

from unisono.data.sampler import permute
from unisono.data.sources.raw_hash import hash_item
from unisono.determinism.seeding import mix
from unisono.determinism.switches import set_generators
from unisono.errors import ConfigError, DataError
from unisono.options.quantities import Count

WINDOW = Count(0, 10**9, "items")
_SKIPPED_AT_ONCE = 1024
_COMPARED = 32  # items that are read again behind a state that was loaded


@final
class Stream:
    """Items in order: from a generator function, a Hugging Face ``IterableDataset``, or anything that can be iterated.

    Each pass over it is an epoch. Every pass must give the same items on every rank: the source is iterated on each of
    them, so it must not be split by rank, and draw at random only from torch's, Python's and NumPy's generators, which
    are keyed for it. ``set_epoch(pass)`` is called before a pass, where the source has it.

    A resumed run goes on behind the last consumed batch: by the source's ``load_state_dict``, if it has that and
    ``state_dict`` (of JSON's types and tensors), else by reading again all that was consumed of the pass. At least the
    last 32 items are read again in both cases, and must have the hash that they had.

    Args:
        source: A function without arguments that returns an iterator, or an object with ``__iter__``.
        window: Items that are shuffled together, by (seed, pass, window); 0 and 1: as they come.
        use_state: Whether the source's own state is asked for. There are sources whose state loses something: a
            shuffle buffer of Hugging Face's is filled anew.
        fingerprint: What names the stream in the score, a short text; its items are in the ledger anyway.
        read: ``all``: every rank reads the whole stream. ``leader``: rank 0 alone does, and hands each rank the items
            that it hosts. The same bits.

    Raises:
        ConfigError: It can be read only once, is split by rank, or is no stream; another `read`.

    Example:
        >>> def lines():
        ...     with open("reviews.txt") as file:
        ...         yield from file
        >>> stream = unisono.Stream(lines, window=1000)
    """

    _loader_hint = (
        "a stream is to train on, by run.loader or Trainer.fit. Elsewhere, where samples need numbers, list(...) of it."
    )

    def __init__(
        self,
        source: Any,
        *,
        window: int = 0,
        use_state: bool = True,
        fingerprint: str | None = None,
        read: str = "all",
    ) -> None:
        kind = type(source).__name__
        is_iterable = isinstance(source, Iterable)
        if isinstance(source, str | bytes | dict | set | frozenset) or not (callable(source) or is_iterable):
            raise ConfigError(f"expected a stream of items, got {kind}. Hint: a function that yields them.")
        if isinstance(source, Iterator):
            raise ConfigError(
                f"expected a stream that can be read again, got {kind}, which can be read once. "
                "Hint: pass the function that makes it: Stream(items), not Stream(items())."
            )
        if hasattr(source, "batch_sampler") and hasattr(source, "dataset"):
            raise ConfigError(f"expected a stream of single items, got a {kind}. Hint: pass its .dataset.")
        if getattr(source, "_distributed", None) is not None:
            raise ConfigError(
                f"the {kind} is split by rank, but every rank reads the whole stream and takes its part of each batch. "
                "Hint: leave split_dataset_by_node out."
            )
        if read not in ("all", "leader"):
            raise ConfigError(f"expected read as 'all' or 'leader', got {read!r}.")
        self.source, self.fingerprint, self.read = source, fingerprint, read
        self.has_state = use_state and hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        self.window = WINDOW.take("window", window)

    @property
    def name(self) -> str:
        """What the score calls the source."""
        return str(getattr(self.source, "__qualname__", type(self.source).__qualname__))


class Place(NamedTuple):
    """How far a stream has been consumed; equal on all ranks, in JSON's types but for the source's own state."""

    passes: int = 0  #: Passes that are complete.
    items: int = 0  #: Items of the present one.
    chain: str = ""  #: Hash over these, in the order in which they were consumed.
    #: How many of them had been consumed when `state` was taken, at the beginning of a batch or window.
    anchor: int = 0
    anchor_chain: str = ""  #: Hash over those.
    state: Any = None  #: The source's own; None where it has none, and reads from its start.
    #: The place at the end of the pass before, from where the source goes over into this one by itself: what it carries
    #: from pass to pass has no other witness. None behind the first anchor, and without a state.
    before: dict[str, Any] | None = None


class Items(NamedTuple):
    """What a batch is made of: the items, and their numbers in the pass."""

    numbers: list[int]
    values: list[Any]


@final
class Reader:
    """One pass over a stream, from a place on.

    Attributes:
        num_skipped: Items that were read again.
        skipped_s: How long that took, in seconds.

    Raises:
        DataError: The stream ends before `start`, or holds other items than were consumed.
    """

    def __init__(self, stream: Stream, start: Place, *, seed: int) -> None:
        source = self._source = stream.source
        self._size, self._seed, self._passes = max(1, stream.window), seed, start.passes
        if hasattr(source, "set_epoch"):
            source.set_epoch(start.passes)
        self._has_state = stream.has_state
        if not self._has_state:
            start = start._replace(anchor=0, anchor_chain="", state=None, before=None)
        elif start.state is not None:
            source.load_state_dict(start.state)
        self._anchors = deque([start])
        self._count = self._read = start.anchor
        self._chain, self._is_exhausted = start.anchor_chain, False
        self._waiting: deque[tuple[int, Any]] = deque()
        set_generators(mix(seed, "stream", start.passes))
        self._items: Iterator[Any] = iter(source if isinstance(source, Iterable) else source())
        begun, self.num_skipped = time.perf_counter(), start.items - start.anchor
        while self._count < start.items:
            if not self.take(min(_SKIPPED_AT_ONCE, start.items - self._count)).values:
                raise _changed(
                    f"ends after {self._count:,} items of pass {start.passes}, of which {start.items:,} were"
                )
        self.skipped_s = time.perf_counter() - begun
        if self._chain != start.chain:
            own = (
                " Or its own state does not lead back to its place: Stream(..., use_state=False)."
                if start.state
                else ""
            )
            raise _changed(
                f"holds other items among the first {start.items:,} of pass {start.passes} than those that were", own
            )

    def take(self, most: int) -> Items:
        """Return the next items, fewer only at the end of the pass."""
        if self._size == 1:
            self._set_anchor()
        numbers: list[int] = []
        values: list[Any] = []
        while len(values) < most and (self._waiting or self._fill()):
            number, value = self._waiting.popleft()
            numbers.append(number)
            values.append(value)
            self._chain = hashlib.blake2b(self._chain.encode() + hash_item(value), digest_size=8).hexdigest()
            self._count += 1
        return Items(numbers, values)

    @property
    def is_at_end(self) -> bool:
        """Whether the source has said that nothing follows, and all was taken."""
        return self._is_exhausted and not self._waiting

    def place(self) -> Place:
        """Return the place behind what has been taken."""
        while len(self._anchors) > 1 and self._count - self._anchors[1].anchor >= _COMPARED:
            self._anchors.popleft()
        return self._anchors[0]._replace(items=self._count, chain=self._chain)

    def end(self) -> Place:
        """Return the place at the end of the pass, where the next one begins."""
        last = self._anchors[-1]
        if last.state is None:
            return Place(self._passes + 1)
        before = last._replace(items=self._count, chain=self._chain, before=None)
        return Place(self._passes + 1, before=before._asdict())

    def _fill(self) -> bool:
        """Read the next window, and say whether there was anything left."""
        if self._is_exhausted:
            return False
        if self._size > 1:
            self._set_anchor()
        window: list[Any] = []
        for number in range(self._read, self._read + self._size):
            set_generators(mix(self._seed, "item", self._passes, number))
            try:
                window.append(next(self._items))
            except StopIteration:
                self._is_exhausted = True
                break
            except Exception as error:
                error.add_note(f"in the stream, after {number:,} items of pass {self._passes}")
                raise
        places = np.arange(len(window))
        if len(window) > 1:
            places = permute(places, len(window), mix(self._seed, "item window", self._passes, self._read))
        self._waiting.extend((self._read + at, window[at]) for at in places.tolist())
        self._read += len(window)
        return bool(window)

    def _set_anchor(self) -> None:
        """Begin again here, if the source can: all that has been read was taken."""
        if self._has_state and not self._is_exhausted and self._count > self._anchors[-1].anchor:
            state = self._source.state_dict()
            self._anchors.append(Place(self._passes, anchor=self._count, anchor_chain=self._chain, state=state))


def begin_pass(stream: Stream, place: Place, *, seed: int) -> None:
    """Bring a source with a state of its own over the end of the pass before; `DataError` where that has changed."""
    if stream.has_state and place.before is not None:
        before = Place(**place.before)
        if Reader(stream, before, seed=seed).take(1).values:
            raise _changed(
                f"goes on after {before.items:,} items of pass {before.passes}, where it had ended when they were"
            )


def _changed(how: str, more: str = "") -> DataError:
    return DataError(
        f"the stream has changed: it {how} consumed before. Hint: resume with the same stream, or begin a new run in "
        f"another out=.{more}"
    )
