"""The exchange of a step's buckets by messages between pairs of ranks, so that the wire is full in both directions.

Every rank owns one chunk of each bucket. Ranks of one host first add up what they have of it in the memory that they
share: each of them carries some of the host's chunks to their owners, and takes back the results (`speakers`,
`within_host`); a rank that is alone on its host carries all of them. All receives are posted when a step starts, but
for partial sums of all but the first `_AHEAD` buckets, which would need memory of their own: they wait until another
one has been added. A bucket's chunks leave for their owners as soon as it is given, and the owner's sum leaves for all
as soon as it is added, while other buckets are on their way in both directions. Two rounds of a collective would fill
one direction at a time: measured with 32 MB between two hosts, these messages take the time of the wire, all_to_all and
all_gather 1.8 times as long.

Two ranks with one partial each swap them whole, and both add: as many bytes as two halves in two rounds, but half the
messages, and nothing that comes last has to cross twice. What comes from the other one lands where the sum will be,
apart from what is sent: so nobody waits for a message to have left before it adds. Where a rank dies just then, nothing
of gloo's would end that wait.

Messages may be coded: rounded numbers as `rounding` does it, others by `codec`, which makes most of them shorter than
the place that waits for them: gloo takes a message that is shorter than its receive.
"""

import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from unisono.collectives.coding import codec
from unisono.collectives.coding.rounding import Coder, Rounding
from unisono.collectives.exchange import Exchange, Partials, Roundings
from unisono.collectives.pieces import cut_into_buckets
from unisono.collectives.process_groups.arrivals import Arrival, Rooms
from unisono.collectives.process_groups.link_trial import LinkTrial
from unisono.collectives.process_groups.speakers import Hosts, carried, carrier, host_nodes, host_of
from unisono.collectives.process_groups.waits import Waits
from unisono.collectives.process_groups.within_host import WithinHost
from unisono.collectives.reduce import note_of
from unisono.collectives.transport import Transport
from unisono.collectives.tree import Node, combine

_AHEAD = 12
"""Buckets whose partial sums may arrive before the first of them has been added."""

_FIRST_TAG = 1 << 29
"""Messages of a program's own have smaller tags, it is hoped; collectives have none."""
_TAGS, _ROUNDS = 1 << 18, 1 << 10
"""Tags of one exchange, and how many exchanges pass before a tag comes back."""

_LATER = 2
"""Buckets that are added up before a host's ranks spread the result of one: until then it is on its way."""

_GRADIENTS, _REPORT = "exchange of gradients", "report of a step"

_Sums = Sequence[tuple[Node, Tensor | Mapping[int, Tensor]]]
"""Subtrees and their sums, by chunk: of a whole bucket, or of the chunks that a rank carries."""

_round = 0
"""Of this process's last exchange: what a step that failed has left on its way fits into no later one."""


@final
class PieceExchange(Exchange):
    """Sums buckets over gloo.

    Args:
        transport: Joins the ranks; counts the bytes.
        find_group: Returns gloo's backend of torch.distributed's default group; it is held during an exchange alone.
        hosts: The ranks of each host; None where each rank is to stand for itself.
        within: What this rank does with others of its host; None where it is alone.
        waits: How it waits.

    Attributes:
        is_open: Whether it has begun, and its last message has not come.
    """

    is_overlapped = True

    def __init__(
        self, transport: Transport, find_group: Callable[[], Any], hosts: Hosts | None = None,
        within: WithinHost | None = None, waits: Waits | None = None,
    ) -> None:  # fmt: skip
        self._find_group, self._waits, self.is_open = find_group, waits or Waits(transport), False
        self._group: Any = None
        self._transport, self._rank, self._size = transport, transport.rank, transport.world_size
        self._hosts = hosts or tuple(range(rank, rank + 1) for rank in range(self._size))
        self._host, self._within = host_of(self._hosts, self._rank), within
        self._owners = [part for part in carried(self._hosts, self._rank) if part != self._rank]
        self._carriers = {
            host: carrier(self._hosts, host, self._rank) for host in range(len(self._hosts)) if host != self._host
        }
        self._scratch: dict[tuple[int, torch.dtype], Tensor] = {}
        self._arriving: list[list[tuple[Node, Arrival]]] = []
        self._results: list[list[Arrival]] = []
        self._sends: list[Any] = []
        self._trial = LinkTrial("none")
        self._incoming, self._outgoing, self._outgoing_sums = Rooms(), Rooms(), Rooms()  # one thread fills each
        self._report_bytes = 0  # of the step before: receives are posted early, since it takes long while buckets come
        self._reports: tuple[Tensor, list[Any]] | None = None
        self._sealed: Callable[[], None] | None = None  # waits for the others' seals

    def choose_codec(self, mode: str) -> None:
        if mode != self._trial.mode:
            self._trial = LinkTrial(mode)

    def lies_apart(self, placement: Sequence[range], leaves: int) -> bool:
        crossing = host_nodes(self._hosts, placement, leaves)
        return self._size == 2 and self._within is None and [*map(len, crossing)] == [1, 1]

    def start(self, outs: Sequence[Tensor], placement: Sequence[range], leaves: int, roundings: Roundings = ()) -> None:
        note = f"codec {self._trial.mode}, {note_of(outs, leaves, roundings)}"
        global _round
        told = self._waits.agree(note, 2 * _round + self._trial.wish)
        _round = 1 + max(number // 2 for number in told)
        is_coded = self._trial.start([number % 2 for number in told])
        self._start(outs, placement, leaves, 1 + _round % (_ROUNDS - 1), roundings, codec if is_coded else None)

    def _start(
        self, outs: Sequence[Tensor], placement: Sequence[range], leaves: int, of_round: int,
        roundings: Roundings = (), coder: Coder | None = None,
    ) -> None:  # fmt: skip
        self._outs, self._leaves, self._group, self.is_open = outs, leaves, self._find_group(), True
        self._roundings = roundings or [None] * len(outs)
        self._coders = [coder if rounding is None else rounding for rounding in self._roundings]
        self._first_tag, self._sizes = _FIRST_TAG + of_round * _TAGS, list[int]()
        for rooms in (self._incoming, self._outgoing, self._outgoing_sums):
            rooms.start()
        self._crossing = host_nodes(self._hosts, placement, leaves)
        self._swaps = self.lies_apart(placement, leaves)
        self._cut, self._mine = (1, 0) if self._swaps else (self._size, self._rank)
        self._ahead = len(outs) if self._swaps else _AHEAD
        if self._within is not None:
            self._within.start(placement, leaves)
        self._tags = 1 + max(len(found) for found in self._crossing)  # of a bucket: its partials, then its result
        self._given: queue.SimpleQueue[_Sums | None] = queue.SimpleQueue()
        self._num_given = 0
        self._arriving, self._results, self._sends = [], [], []
        with self._waits.named(_GRADIENTS):
            self._reports = self._expect_reports() if self._report_bytes else None
            self._waits.expect_seal(self._first_tag + _TAGS - 2)
            for bucket, out in enumerate(outs):
                if bucket < self._ahead:
                    self._expect(bucket)
                self._results.append([
                    self._receive(self._chunk(out, rank), rank, bucket, self._tags - 1)
                    for rank in self._owners if not self._swaps
                ])  # fmt: skip

    def give(self, partials: Partials) -> None:
        bucket, self._num_given = self._num_given, self._num_given + 1
        self._trial.given()
        if self._swaps and _is_same(partials[0][1], self._outs[bucket]):
            raise ValueError("a partial sum lies where its result comes; see lies_apart")
        sums: _Sums = [(node, partial.view(self._cut, -1)) for node, partial in partials]
        if self._within is not None:
            with self._waits.entered():
                sums = self._within.collect(partials, self._outs[bucket], self._roundings[bucket])
        with self._waits.named(_GRADIENTS):
            for rank in self._owners:
                for index, (_, chunks) in enumerate(sums):
                    part = chunks[0 if self._swaps else rank]
                    self._send(self._packed(part, self._outgoing, bucket), rank, bucket, index)
        self._given.put(sums)

    def finish(self) -> None:
        self._waits.run(self._finish)

    def _finish(self) -> None:
        later = len(self._outs) if self._within is None else _LATER
        with self._waits.within(_GRADIENTS):
            for bucket, out in enumerate(self._outs):
                sums = self._given.get()
                if sums is None:
                    return
                self._add(bucket, sums, self._chunk(out, self._mine))
                if bucket >= later:
                    self._take_result(bucket - later)
            for bucket in range(max(0, len(self._outs) - later), len(self._outs)):
                self._take_result(bucket)
            self._waits.sent(self._sends)
        sent = sum(self._sizes)
        self._transport.bytes_sent += sent  # here alone: two threads send
        self._trial.end(sent, self._outs)
        self._let_go()

    def tell(self, message: Tensor) -> Callable[[], Tensor]:
        # Beside the buckets: a collective after them would wait once more, and for a thread of gloo's own.
        with self._waits.named(_REPORT):
            if self._reports is None:
                self._report_bytes = len(message)
                self._reports = self._expect_reports()
            (rows, works), others, group = self._reports, self._all_others(), self._find_group()
            rows[self._rank] = message
            sends = [group.send([message], rank, self._first_tag + _TAGS - 1) for rank in others]

        def wait() -> Tensor:
            with self._waits.within(_REPORT):
                for work in works:
                    self._waits.wait(work)
                self._waits.sent(sends)
            self._transport.bytes_sent += message.nbytes * len(others)
            self._seal()
            return rows

        return wait

    def _expect_reports(self) -> tuple[Tensor, list[Any]]:
        """Post receives for what the others will `tell`, and return where it goes."""
        rows, group = torch.empty(self._size, self._report_bytes, dtype=torch.uint8), self._find_group()
        return rows, [group.recv([rows[rank]], rank, self._first_tag + _TAGS - 1) for rank in self._all_others()]

    def _all_others(self) -> list[int]:
        return [rank for rank in range(self._size) if rank != self._rank]

    def give_up(self) -> None:
        self._given.put(None)

    def close(self) -> None:
        """Let go of the group."""
        self._waits.close(self._group)
        self._let_go()

    def _let_go(self) -> None:
        self._group, self._arriving, self._results, self._sends = None, [], [], []

    def _seal(self) -> None:
        self._sealed = self._waits.seal(self._first_tag + _TAGS - 2)

    def await_seal(self) -> None:
        sealed, self._sealed = self._sealed, None
        if sealed is not None:
            sealed()
        self.is_open = False

    def reduce(
        self, partials: Partials, placement: Sequence[range], leaves: int, out: Tensor,
        rounding: Rounding | None = None,
    ) -> None:  # fmt: skip
        """Add the partial sums of all ranks in canonical order; see `reduce.tree_all_reduce`."""
        if self.lies_apart(placement, leaves):
            partials = [(node, partial.clone() if _is_same(partial, out) else partial) for node, partial in partials]
        buckets = cut_into_buckets(len(out), self._size, out.element_size())
        roundings = [] if rounding is None else [rounding.at(bucket.start) for bucket in buckets]
        self._start([_part(out, bucket) for bucket in buckets], placement, leaves, 0, roundings)
        for bucket in buckets:
            self.give([(node, _part(partial, bucket)) for node, partial in partials])
        self.finish()
        self._seal()
        self.await_seal()

    def _take_result(self, bucket: int) -> None:
        """Wait for what this rank carries of a bucket's result; give it to the others of its host."""
        for arrival in self._results[bucket]:
            self._await(arrival)
        if self._within is not None:
            self._within.spread(self._outs[bucket])

    def _add(self, bucket: int, sums: _Sums, out: Tensor) -> None:
        """Add up this rank's chunk of a bucket as soon as all of it is here, and send the sum to all who lack it."""
        values = {node: chunks[self._mine] for node, chunks in sums}
        for node, arrival in self._arriving[bucket]:
            values[node] = self._await(arrival)
        rounding = self._roundings[bucket]
        settle = None if rounding is None else rounding.at(self._mine * len(out)).round_
        into: Callable[[Tensor, Tensor], Tensor] = lambda left, right: torch.add(left, right, out=out)  # noqa: E731
        total = combine(values, self._leaves, torch.add, into, settle=settle)
        if total is not out:  # the tree is one partial
            out.copy_(total)
        if bucket + self._ahead < len(self._outs):
            self._expect(bucket + self._ahead)
        if self._swaps:
            return
        message = self._packed(out, self._outgoing_sums, bucket)
        for rank in self._carriers.values():
            self._send(message, rank, bucket, self._tags - 1)

    def _expect(self, bucket: int) -> None:
        """Post the receives of a bucket's partial sums, in the memory of the one that is `_AHEAD` before it."""
        if self._swaps:
            other = 1 - self._rank  # each is a host of its own
            node = self._crossing[1 - self._host][0]
            self._arriving.append([(node, self._receive(self._outs[bucket], other, bucket, 0))])
            return
        dtype, chunk = self._outs[bucket].dtype, len(self._outs[bucket]) // self._size
        rows = [
            (rank, index, node)
            for host, rank in self._carriers.items()
            for index, node in enumerate(self._crossing[host])
        ]
        key = bucket % self._ahead, dtype
        if key not in self._scratch or len(self._scratch[key]) < len(rows) * chunk:
            self._scratch[key] = torch.empty(len(rows) * chunk, dtype=dtype)
        places = self._scratch[key].narrow(0, 0, len(rows) * chunk).view(len(rows), chunk)
        self._arriving.append(
            [(node, self._receive(place, rank, bucket, i)) for (rank, i, node), place in zip(rows, places, strict=True)]
        )

    def _chunk(self, bucket: Tensor, rank: int) -> Tensor:
        length = len(bucket) // self._cut
        return bucket.narrow(0, rank * length, length)

    def _packed(self, part: Tensor, rooms: Rooms, bucket: int) -> Tensor:
        coder = self._coders[bucket]
        return part.view(torch.uint8) if coder is None else coder.encode(part, rooms.take(coder.room(part)))

    def _send(self, message: Tensor, rank: int, bucket: int, index: int) -> None:
        self._sizes.append(message.nbytes)
        self._sends.append(self._group.send([message], rank, self._tag(bucket, index)))

    def _receive(self, part: Tensor, rank: int, bucket: int, index: int) -> Arrival:
        coder = self._coders[bucket]
        place = part.view(torch.uint8) if coder is None else self._incoming.take(coder.room(part))
        return Arrival(self._group.recv([place], rank, self._tag(bucket, index)), place, part, coder)

    def _await(self, arrival: Arrival) -> Tensor:
        self._waits.wait(arrival.work)
        return arrival.numbers()

    def _tag(self, bucket: int, index: int) -> int:
        return self._first_tag + bucket * self._tags + index


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _part(tensor: Tensor, part: range) -> Tensor:
    return tensor.narrow(0, part.start, len(part))
