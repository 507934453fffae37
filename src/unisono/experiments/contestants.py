"""What is measured against what under ``unisono bench collectives``: each collective over each transport.

A contestant is one way to do one collective with one buffer: what to prepare, what to time, and how to tell that the
result is right. All use small whole numbers, whose sums are exact in any order; but our own tree sum is held to the
bits of the canonical tree.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from unisono.collectives.pieces import padded_length
from unisono.collectives.placement import place_evenly
from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.transport import Transport
from unisono.collectives.tree import combine

MOST_CALLS = 50
WORK, AFTER_WORK = "work", "work, then tree_all_reduce"
"""Measured only on request: what a step does between two sums, and the same with the sum."""
_LARGEST_EXACT = 1 << 24  # whole numbers up to here are exact in float32
_PERIOD = 16  # the test data repeats itself after so many elements; divides every slice


@final
@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to do one collective with one buffer."""

    prepare: Callable[[], object]  #: Spoils the output, and fills the input where the call overwrites it.
    call: Callable[[], object]  #: What is timed.
    is_right: Callable[[int], bool]  #: Whether the output is right after so many calls.
    most_calls: int = MOST_CALLS  #: Calls after which a check is still possible.
    collective: str = ""  #: Its name.
    transport: str = ""  #: What carries the bytes.
    num_bytes: int = 0  #: The whole buffer: what is reduced, broadcast, cut into parts, or put together from parts.


def rounds(
    groups: Mapping[str, dist.ProcessGroup], transports: Mapping[str, Transport], sizes: Sequence[int],
    only: Sequence[str] = (),
) -> Iterator[list[Contestant]]:  # fmt: skip
    """Yield what is measured turn by turn: one collective with one buffer over everything there is.

    Args:
        groups: By the names of their backends, for the functions of torch.distributed.
        transports: By their names, for our tree sum.
        sizes: Bytes of the buffers; rounded up to a multiple of 64 bytes for each rank.
        only: Names of collectives; none means all.
    """
    world_size = next(iter(transports.values())).world_size
    for length in dict.fromkeys(padded_length(-(-size // 4), world_size) for size in sizes):
        for name, make in BUFFERED.items():
            if not only or name in only:
                yield [
                    replace(make(group, length), collective=name, transport=over, num_bytes=4 * length)
                    for over, group in groups.items()
                ]
        if not only or "tree_all_reduce" in only:
            yield [tree_sum(name, transport, length) for name, transport in transports.items()]
        if AFTER_WORK in only:
            yield after_work(transports, length)
        yield [memcpy(length)]
    if not only or "barrier" in only:
        yield [
            Contestant(
                _nothing, partial(dist.barrier, group=group), lambda _: True, collective="barrier", transport=name
            )
            for name, group in groups.items()
        ]


def _all_reduce(group: dist.ProcessGroup, length: int) -> Contestant:
    """In place, so that each further call adds equal buffers."""
    size, out, period = group.size(), torch.empty(length), _whole(group.rank())
    total = _total(size)
    most = 1
    while int(total.max()) * size**most < _LARGEST_EXACT:
        most += 1
    return Contestant(
        lambda: out.view(-1, _PERIOD).copy_(period),
        lambda: dist.all_reduce(out, group=group),
        lambda calls: _repeats(out, total * size ** (calls - 1)),
        most,
    )


def _reduce(group: dist.ProcessGroup, length: int) -> Contestant:
    """In place on rank 0; the others' buffers are gloo's to spoil, so a repetition is one call."""
    out, period = torch.empty(length), _whole(group.rank())
    return Contestant(
        lambda: out.view(-1, _PERIOD).copy_(period),
        lambda: dist.reduce(out, 0, group=group),
        lambda _: group.rank() != 0 or _repeats(out, _total(group.size())),
        most_calls=1,
    )


def _reduce_scatter(group: dist.ProcessGroup, length: int) -> Contestant:
    scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    source, out = _whole(group.rank()).repeat(length // _PERIOD), torch.empty(length // group.size())
    return Contestant(
        lambda: out.fill_(torch.nan),
        lambda: scatter(out, source, group=group),
        lambda _: _repeats(out, _total(group.size())),
    )


def _filling(out: Tensor, call: Callable[[], object], values: Sequence[float]) -> Contestant:
    """Return a call that fills its output with so many parts of one value each; no values: with nothing of interest."""
    expected = torch.tensor(values).unsqueeze(1)
    return Contestant(
        lambda: out.fill_(torch.nan), call, lambda _: not values or bool((out.view(len(values), -1) == expected).all())
    )


def _broadcast(group: dist.ProcessGroup, length: int) -> Contestant:
    out = torch.empty(length)
    made = _filling(out, lambda: dist.broadcast(out, 0, group=group), [1.0])
    return replace(made, prepare=lambda: out.fill_(1.0 if group.rank() == 0 else torch.nan))


def _scatter(group: dist.ProcessGroup, length: int) -> Contestant:
    rank, size = group.rank(), group.size()
    out = torch.empty(length // size)
    parts = [torch.full_like(out, 1.0 + other) for other in range(size)] if rank == 0 else None
    return _filling(out, lambda: dist.scatter(out, parts, 0, group=group), [1.0 + rank])


def _gather(group: dist.ProcessGroup, length: int) -> Contestant:
    rank, size = group.rank(), group.size()
    part, out = torch.full((length // size,), 1.0 + rank), torch.empty(length if rank == 0 else 0)
    outs = list(out.view(size, -1)) if rank == 0 else None
    values = [1.0 + other for other in range(size)] if rank == 0 else []
    return _filling(out, lambda: dist.gather(part, outs, 0, group=group), values)


def _all_gather(group: dist.ProcessGroup, length: int) -> Contestant:
    gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    part, out = torch.full((length // group.size(),), 1.0 + group.rank()), torch.empty(length)
    return _filling(out, lambda: gather(out, part, group=group), [1.0 + other for other in range(group.size())])


def _all_to_all(group: dist.ProcessGroup, length: int) -> Contestant:
    rank, size = group.rank(), group.size()
    send = torch.cat([torch.full((length // size,), 100.0 * rank + target) for target in range(size)])
    out = torch.empty(length)
    values = [100.0 * source + rank for source in range(size)]
    return _filling(out, lambda: dist.all_to_all_single(out, send, group=group), values)


def _send_recv(group: dist.ProcessGroup, length: int) -> Contestant:
    """Rank 0 sends to rank 1 and gets the buffer back; the others wait."""
    rank, source, out = group.rank(), torch.ones(length), torch.empty(length)

    def call() -> None:
        if rank == 0:
            dist.send(source, 1, group=group)
            dist.recv(out, 1, group=group)
        elif rank == 1:
            dist.recv(out, 0, group=group)
            dist.send(out, 0, group=group)

    return _filling(out, call, [1.0] if rank <= 1 else [])


BUFFERED: Mapping[str, Callable[[dist.ProcessGroup, int], Contestant]] = {
    "all_reduce": _all_reduce, "reduce": _reduce, "reduce_scatter": _reduce_scatter, "broadcast": _broadcast,
    "scatter": _scatter, "gather": _gather, "all_gather": _all_gather, "all_to_all": _all_to_all,
    "send_recv": _send_recv,
}  # fmt: skip
"""torch.distributed's collectives of a buffer, by name."""


def tree_sum(name: str, transport: Transport, length: int) -> Contestant:
    """Return our all-reduce as the exact step uses it, in place; only the tree's bits are right."""
    size = transport.world_size
    period, expected = _rough(transport.rank), {}
    leaves = {(rank, rank + 1): _rough(rank) for rank in range(size)}
    for calls in range(1, MOST_CALLS // 2 + 1):  # each further call adds equal buffers
        total = combine(leaves, size, torch.add)
        expected[calls] = total
        leaves = dict.fromkeys(leaves, total)
    out = torch.empty(length)
    partials = [((transport.rank, transport.rank + 1), out)]
    placement = place_evenly(size, size)
    return Contestant(
        lambda: out.view(-1, _PERIOD).copy_(period),
        lambda: tree_all_reduce(partials, placement, size, out, transport),
        lambda calls: calls == 0 or _repeats(out, expected[calls]),
        MOST_CALLS // 2, "tree_all_reduce", name, 4 * length,
    )  # fmt: skip


def after_work(transports: Mapping[str, Transport], length: int) -> list[Contestant]:
    """Return some milliseconds of work, and the same before our tree sum over each transport.

    In training a sum follows computation: the message has left the caches, the ranks come at different times, and
    where they share cores each waits for its turn. The difference of the two has all that in it.
    """
    matrix, gradients = torch.eye(192), torch.zeros(4 * length)

    def work() -> None:
        for _ in range(12):
            torch.mm(matrix, matrix)
        gradients.add_(1.0)

    found = [Contestant(_nothing, work, lambda _: True, MOST_CALLS, WORK, "memory", 4 * length)]
    for name, transport in transports.items():
        alone = tree_sum(name, transport, length)
        found.append(replace(alone, collective=AFTER_WORK, call=partial(_in_turn, work, alone.call)))
    return found


def _in_turn(first: Callable[[], object], second: Callable[[], object]) -> None:
    first()
    second()


def memcpy(length: int) -> Contestant:
    """Return a plain copy of a buffer in memory: the limit, since each rank must at least write its result."""
    source, target = torch.ones(length), torch.empty(length)
    made = _filling(target, lambda: target.copy_(source), [1.0])
    return replace(made, collective="memcpy", transport="memory", num_bytes=4 * length)


def _whole(rank: int) -> Tensor:
    """Return whole numbers from 1 to 16, other ones on each rank."""
    return (torch.arange(_PERIOD) + rank).remainder(_PERIOD).add(1).float()


def _total(world_size: int) -> Tensor:
    return sum((_whole(rank) for rank in range(world_size)), torch.zeros(_PERIOD))


def _rough(rank: int) -> Tensor:
    """Return numbers of very different size, so that each order of addition rounds in its own way."""
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(_PERIOD, generator=generator, dtype=torch.float64)
    return (values * 2.0 ** torch.randint(-6, 7, (_PERIOD,), generator=generator)).float()


def _repeats(tensor: Tensor, period: Tensor) -> bool:
    """Whether a tensor repeats a period, bit for bit."""
    return bool((tensor.view(-1, _PERIOD).view(torch.int32) == period.view(torch.int32)).all())


def _nothing() -> None:
    """Nothing to prepare."""
