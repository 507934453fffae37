"""The exchange of a step's buckets by messages between pairs of ranks, so that the wire is full in both directions.

Every rank owns one chunk of each bucket. All receives are posted when a step starts, but for partial sums of all but
the first `_AHEAD` buckets, which would need memory of their own: they wait until another one has been added. A bucket's
chunks leave for their owners as soon as it is given, and the owner's sum leaves for all as soon as it is added, while
other buckets are on their way in both directions. Two rounds of a collective would fill one direction at a time:
measured with 32 MB between two hosts, these messages take the time of the wire, all_to_all and all_gather 1.8 times as
long.

Messages may be coded (`codec`), which makes most of them shorter than the place that waits for them: gloo takes a
message that is shorter than its receive.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, final

import torch
from torch import Tensor

from unisono.collectives import codec
from unisono.collectives.exchange import Exchange, Partials
from unisono.collectives.pieces import cut_into_buckets
from unisono.collectives.process_groups.default_group import lost_peers_named
from unisono.collectives.process_groups.link_trial import LinkTrial
from unisono.collectives.reduce import note_of
from unisono.collectives.transport import Transport
from unisono.collectives.tree import Node, combine, owned_nodes

_AHEAD = 12
"""Buckets whose partial sums may arrive before the first of them has been added."""

_FIRST_TAG = 1 << 29
"""Messages of a program's own have smaller tags, it is hoped; collectives have none."""
_TAGS, _ROUNDS = 1 << 18, 1 << 10
"""Tags of one exchange, and how many exchanges pass before a tag comes back."""

_LEAVE_S = 5.0

_round = 0
"""Of this process's last exchange: what a step that failed has left on its way fits into no later one."""


@final
class PieceExchange(Exchange):
    """Sums buckets over gloo.

    Args:
        transport: Joins the ranks; counts the bytes.
        find_group: Returns gloo's backend of torch.distributed's default group; it is held during an exchange alone.
    """

    is_overlapped = True

    def __init__(self, transport: Transport, find_group: Callable[[], Any]) -> None:
        self._find_group = find_group
        self._group: Any = None
        self._transport, self._rank, self._size = transport, transport.rank, transport.world_size
        self._others = [rank for rank in range(self._size) if rank != self._rank]
        self._scratch: dict[tuple[int, torch.dtype], Tensor] = {}
        self._arriving: list[list[tuple[Node, _Arrival]]] = []
        self._results: list[_Arrival] = []
        self._sends: list[Any] = []
        self._trial = LinkTrial("none")
        self._incoming, self._outgoing, self._outgoing_sums = _Rooms(), _Rooms(), _Rooms()  # one thread fills each
        self._inside, self._changed = 0, threading.Condition()  # threads that may wait for messages

    def choose_codec(self, mode: str) -> None:
        if mode != self._trial.mode:
            self._trial = LinkTrial(mode)

    def start(self, outs: Sequence[Tensor], placement: Sequence[range], leaves: int) -> None:
        note = f"codec {self._trial.mode}, {note_of(outs, leaves)}"
        global _round
        with self._entered():
            told = self._transport.agree(note, 2 * _round + self._trial.wish)
        _round = 1 + max(number // 2 for number in told)
        is_coded = self._trial.start([number % 2 for number in told])
        self._start(outs, placement, leaves, 1 + _round % (_ROUNDS - 1), is_coded=is_coded)

    def _start(
        self, outs: Sequence[Tensor], placement: Sequence[range], leaves: int, of_round: int, *, is_coded: bool = False
    ) -> None:
        self._outs, self._leaves, self._is_coded, self._group = outs, leaves, is_coded, self._find_group()
        self._first_tag, self._sizes = _FIRST_TAG + of_round * _TAGS, list[int]()
        for rooms in (self._incoming, self._outgoing, self._outgoing_sums):
            rooms.start()
        self._owned = owned_nodes(tuple(placement), leaves)
        self._tags = 1 + max(len(found) for found in self._owned)  # of a bucket: its partials, then its result
        self._given: queue.SimpleQueue[Partials | None] = queue.SimpleQueue()
        self._num_given = 0
        self._arriving, self._results, self._sends = [], [], []
        with lost_peers_named(self._rank, self._size, "exchange of gradients"):
            for bucket, out in enumerate(outs):
                if bucket < _AHEAD:
                    self._expect(bucket)
                for rank in self._others:
                    self._results.append(self._receive(self._chunk(out, rank), rank, bucket, self._tags - 1))

    def give(self, partials: Partials) -> None:
        bucket, self._num_given = self._num_given, self._num_given + 1
        self._trial.given()
        with lost_peers_named(self._rank, self._size, "exchange of gradients"):
            for rank in self._others:
                for index, (_, partial) in enumerate(partials):
                    self._send(self._packed(self._chunk(partial, rank), self._outgoing), rank, bucket, index)
        self._given.put(partials)

    def finish(self) -> None:
        with self._entered(), lost_peers_named(self._rank, self._size, "exchange of gradients"):
            for bucket, out in enumerate(self._outs):
                partials = self._given.get()
                if partials is None:
                    return
                self._add(bucket, partials, self._chunk(out, self._rank))
            for work in self._results:
                work.wait()
            for work in self._sends:
                work.wait()
        sent = sum(self._sizes)
        self._transport.bytes_sent += sent  # here alone: two threads send
        self._trial.end(sent, self._outs)
        self._let_go()

    def give_up(self) -> None:
        self._given.put(None)

    def close(self) -> None:
        """Let go of the group: no thread may wait in it, and none of gloo's be left, when the interpreter ends."""
        with self._changed:
            if self._inside and self._group is not None:
                with contextlib.suppress(RuntimeError):  # a wait that is too short breaks off all connections
                    place = torch.empty(1, dtype=torch.uint8)
                    self._group.recv([place], self._others[0], _FIRST_TAG - 1).wait(timedelta(milliseconds=1))
                self._changed.wait_for(lambda: not self._inside, _LEAVE_S)
        self._let_go()

    def _let_go(self) -> None:
        self._group, self._arriving, self._results, self._sends = None, [], [], []

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        with self._changed:
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def reduce(self, partials: Partials, placement: Sequence[range], leaves: int, out: Tensor) -> None:
        """Add the partial sums of all ranks in canonical order, not coded; see `reduce.tree_all_reduce`."""
        buckets = cut_into_buckets(len(out), self._size, out.element_size())
        self._start([_part(out, bucket) for bucket in buckets], placement, leaves, 0)
        for bucket in buckets:
            self.give([(node, _part(partial, bucket)) for node, partial in partials])
        self.finish()

    def _add(self, bucket: int, partials: Partials, out: Tensor) -> None:
        """Add up this rank's chunk of a bucket as soon as all of it is here, and send the sum to all."""
        values = {node: self._chunk(partial, self._rank) for node, partial in partials}
        for node, arrival in self._arriving[bucket]:
            values[node] = arrival.wait()
        total = combine(values, self._leaves, torch.add, lambda left, right: torch.add(left, right, out=out))
        if total is not out:  # the tree is one partial
            out.copy_(total)
        if bucket + _AHEAD < len(self._outs):
            self._expect(bucket + _AHEAD)
        message = self._packed(out, self._outgoing_sums)
        for rank in self._others:
            self._send(message, rank, bucket, self._tags - 1)

    def _expect(self, bucket: int) -> None:
        """Post the receives of a bucket's partial sums, in the memory of the one that is `_AHEAD` before it."""
        dtype, chunk = self._outs[bucket].dtype, len(self._outs[bucket]) // self._size
        rows = [(rank, index, node) for rank in self._others for index, node in enumerate(self._owned[rank])]
        key = bucket % _AHEAD, dtype
        if key not in self._scratch or len(self._scratch[key]) < len(rows) * chunk:
            self._scratch[key] = torch.empty(len(rows) * chunk, dtype=dtype)
        places = self._scratch[key].narrow(0, 0, len(rows) * chunk).view(len(rows), chunk)
        self._arriving.append(
            [(node, self._receive(place, rank, bucket, i)) for (rank, i, node), place in zip(rows, places, strict=True)]
        )

    def _chunk(self, bucket: Tensor, rank: int) -> Tensor:
        length = len(bucket) // self._size
        return bucket.narrow(0, rank * length, length)

    def _packed(self, part: Tensor, rooms: "_Rooms") -> Tensor:
        return codec.encode(part, rooms.take(codec.room(part))) if self._is_coded else part.view(torch.uint8)

    def _send(self, message: Tensor, rank: int, bucket: int, index: int) -> None:
        self._sizes.append(message.nbytes)
        self._sends.append(self._group.send([message], rank, self._tag(bucket, index)))

    def _receive(self, part: Tensor, rank: int, bucket: int, index: int) -> "_Arrival":
        place = self._incoming.take(codec.room(part)) if self._is_coded else part.view(torch.uint8)
        return _Arrival(self._group.recv([place], rank, self._tag(bucket, index)), place, part, self._is_coded)

    def _tag(self, bucket: int, index: int) -> int:
        return self._first_tag + bucket * self._tags + index


@final
@dataclass(frozen=True, slots=True)
class _Arrival:
    """A message that will come, and where its numbers go."""

    work: Any
    message: Tensor
    part: Tensor
    is_coded: bool

    def wait(self) -> Tensor:
        """Return the numbers when they are there."""
        self.work.wait()
        if self.is_coded:
            codec.decode(self.message, self.part)
        return self.part


@final
class _Rooms:
    """Memory for messages, the same in each step."""

    def __init__(self) -> None:
        self._rooms: list[Tensor] = []
        self._next = 0

    def start(self) -> None:
        """Start a step: all may be used again."""
        self._next = 0

    def take(self, num_bytes: int) -> Tensor:
        """Return so many bytes, uint8, that nobody else uses in this step."""
        if self._next == len(self._rooms):
            self._rooms.append(torch.empty(num_bytes, dtype=torch.uint8))
        elif len(self._rooms[self._next]) < num_bytes:
            self._rooms[self._next] = torch.empty(num_bytes, dtype=torch.uint8)
        self._next += 1
        return self._rooms[self._next - 1][:num_bytes]


def _part(tensor: Tensor, part: range) -> Tensor:
    return tensor.narrow(0, part.start, len(part))
