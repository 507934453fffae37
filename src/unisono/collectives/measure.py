"""How long collectives take: the program that every rank runs under ``unisono bench collectives``.

In: message sizes and a number of repetitions. Out: rows of plain values. What is compared is measured in one run, turn
by turn, so that a busy machine slows all alike; one repetition is a few calls in a row, and lasts as long as on the
slowest rank. Every repetition's result is checked.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

from unisono.collectives.process_group import ProcessGroupTransport, connect
from unisono.collectives.reduce import padded_length, tree_all_reduce
from unisono.collectives.transport import Transport
from unisono.collectives.tree import combine
from unisono.errors import ConfigError, RankDivergence
from unisono.placement import place_evenly
from unisono.world import World

TIMEOUT_S = 300.0
_REPETITION_S = 2e-3  # calls are repeated until a repetition takes about as long
_LARGEST_EXACT = 1 << 24  # whole numbers up to here are exact in float32
_PERIOD = 16  # the test data repeats itself after so many elements; divides every slice


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """One row: a collective over a transport at one size.

    Attributes:
        ranks: Number of ranks.
        collective: ``all_reduce``, ``all_gather``, ``all_to_all``, ``barrier`` or ``memcpy``.
        transport: ``shm`` and ``gloo`` are this package's; ``torch`` is torch.distributed's own collective over gloo;
            ``memory``: each rank copies a buffer of its own.
        bytes: The whole buffer: what is reduced, what all_gather delivers, what one rank sends in all_to_all.
        repeat: Number of repetitions.
        calls: Calls in one repetition; times are per call.
        median_s: Median over the repetitions.
        q1_s: A quarter of them were not slower.
        q3_s: Three quarters of them were not slower.
        bytes_per_s: ``bytes / median_s``; None for a barrier.
    """

    ranks: int
    collective: str
    transport: str
    bytes: int
    repeat: int
    calls: int
    median_s: float
    q1_s: float
    q3_s: float
    bytes_per_s: float | None


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class _Contestant:
    """One way to do one collective with one buffer.

    Attributes:
        prepare: Spoils the output, and fills the input where the call overwrites it.
        call: What is timed.
        is_right: Whether the output is right after so many calls.
        most_calls: Calls after which a check is still possible.
    """

    collective: str
    transport: str
    num_bytes: int
    prepare: Callable[[], object]
    call: Callable[[], object]
    is_right: Callable[[int], bool]
    most_calls: int = 50


def measure(sizes: Sequence[int], repeat: int, out: str) -> None:
    """Measure every collective at every size in the world of this process; rank 0 writes the rows as JSON to `out`.

    All ranks call it; it blocks.

    Args:
        sizes: Bytes of the buffers; rounded up to a multiple of 64 bytes for each rank.
        repeat: Number of repetitions of each.
        out: File for the rows.

    Raises:
        ConfigError: Fewer than 2 ranks, no size, or a number below 1.
        RankDivergence: A collective gave a wrong result.
        PeerLost: A rank went away.
    """
    world = World.current()
    if world.world_size < 2 or repeat < 1 or not sizes or min(sizes) < 1:
        raise ConfigError(
            f"expected at least 2 ranks, 1 repetition, and sizes of 1 byte or more, got {world.world_size} ranks, "
            f"{repeat} repetitions and sizes {list(sizes)}."
        )
    shared = connect(world, timeout_s=TIMEOUT_S)  # as training gets it, with this host's plan
    gloo = ProcessGroupTransport(owns_group=False)
    transports = {"gloo": gloo} if shared.board is None else {"shm": shared, "gloo": gloo}
    try:
        rows = [row for contestants in _rounds(transports, sizes) for row in _compete(contestants, repeat, shared)]
        if world.is_leader:
            Path(out).write_text(json.dumps([asdict(row) for row in rows]))
        gloo.barrier()  # nobody leaves while another still measures
    finally:
        shared.close()


def _rounds(transports: Mapping[str, Transport], sizes: Sequence[int]) -> Iterator[list[_Contestant]]:
    """Yield what is measured turn by turn; buffers of one size at a time are alive."""
    world_size = transports["gloo"].world_size
    lengths = [padded_length(-(-size // 4), world_size) for size in sizes]
    for length in dict.fromkeys(lengths):
        yield [
            *(_tree_all_reduce(name, transport, length) for name, transport in transports.items()),
            _torch_all_reduce(length, transports["gloo"]),
            *(_all_gather(name, transport, length) for name, transport in transports.items()),
            *(_all_to_all(name, transport, length) for name, transport in transports.items()),
            _memcpy(length),
        ]
    barriers = {**{name: transport.barrier for name, transport in transports.items()}, "torch": dist.barrier}
    yield [
        _Contestant(
            collective="barrier", transport=name, num_bytes=0, prepare=_nothing, call=call, is_right=lambda calls: True
        )
        for name, call in barriers.items()
    ]


def _compete(contestants: Sequence[_Contestant], repeat: int, control: Transport) -> Iterator[Timing]:
    """Measure contestants turn by turn, with another first each time.

    `control` lets the ranks begin together: the transport with the quickest barrier.
    """
    calls = []
    for one in contestants:
        _time(one, 1, control)  # the first call touches the memory and opens connections
        once_s = _time(one, min(3, one.most_calls), control)
        mine = max(1, min(one.most_calls, int(_REPETITION_S / max(once_s, 1e-9))))
        calls.append(min(control.all_gather_json(mine)))
    samples: list[list[float]] = [[] for _ in contestants]
    for repetition in range(repeat):
        for offset in range(len(contestants)):
            index = (repetition + offset) % len(contestants)
            samples[index].append(_time(contestants[index], calls[index], control))
    for one, count, mine_s in zip(contestants, calls, samples, strict=True):
        # The collective is over when the last rank has its result.
        slowest = [max(times) for times in zip(*control.all_gather_json(mine_s), strict=True)]
        q1, median, q3 = statistics.quantiles(slowest, n=4, method="inclusive") if repeat > 1 else slowest * 3
        yield Timing(
            ranks=control.world_size,
            collective=one.collective,
            transport=one.transport,
            bytes=one.num_bytes,
            repeat=repeat,
            calls=count,
            median_s=median,
            q1_s=q1,
            q3_s=q3,
            bytes_per_s=one.num_bytes / median if one.num_bytes else None,
        )


def _time(one: _Contestant, calls: int, control: Transport) -> float:
    """Return the seconds per call of one repetition on this rank, and check its result."""
    one.prepare()
    control.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        one.call()
    elapsed_s = (time.perf_counter() - began) / calls
    if not one.is_right(calls):
        raise RankDivergence(
            f"[rank {control.rank}/{control.world_size}] {one.collective} over {one.transport} with {one.num_bytes} "
            "bytes gave a wrong result. Hint: this is a defect; please report it with the output of this command."
        )
    return elapsed_s


def _tree_all_reduce(name: str, transport: Transport, length: int) -> _Contestant:
    """Our all-reduce, of values whose sum depends on the order of addition: only the tree's bits are right."""
    world_size = transport.world_size
    periods = [_rough(rank) for rank in range(world_size)]
    leaves = {(rank, rank + 1): period for rank, period in enumerate(periods)}
    expected = combine(leaves, world_size, torch.add)
    source, out = periods[transport.rank].repeat(length // _PERIOD), torch.empty(length)
    partials = [((transport.rank, transport.rank + 1), source)]
    placement = place_evenly(world_size, world_size)
    return _Contestant(
        collective="all_reduce",
        transport=name,
        num_bytes=4 * length,
        prepare=lambda: out.fill_(torch.nan),
        call=lambda: tree_all_reduce(partials, placement, world_size, out, transport),
        is_right=lambda calls: _repeats(out, expected),
    )


def _torch_all_reduce(length: int, transport: Transport) -> _Contestant:
    """torch.distributed's all-reduce, in place; its order is its own, so of whole numbers, whose sums are exact."""
    world_size = transport.world_size
    total = sum((_whole(rank) for rank in range(world_size)), torch.zeros(_PERIOD))
    period, out = _whole(transport.rank), torch.empty(length)
    largest = int(total.max())
    most_calls = 1
    while largest * world_size**most_calls < _LARGEST_EXACT:
        most_calls += 1
    return _Contestant(
        collective="all_reduce",
        transport="torch",
        num_bytes=4 * length,
        prepare=lambda: out.view(-1, _PERIOD).copy_(period),
        call=lambda: dist.all_reduce(out),
        # Each further call adds equal buffers.
        is_right=lambda calls: _repeats(out, total * world_size ** (calls - 1)),
        most_calls=most_calls,
    )


def _all_gather(name: str, transport: Transport, length: int) -> _Contestant:
    part = length // transport.world_size
    send, recv = torch.full((part,), 1.0 + transport.rank), torch.empty(length)
    return _Contestant(
        collective="all_gather",
        transport=name,
        num_bytes=4 * length,
        prepare=lambda: recv.fill_(torch.nan),
        call=lambda: transport.all_gather(send, recv),
        is_right=lambda calls: all(bool((got == 1.0 + rank).all()) for rank, got in enumerate(recv.split(part))),
    )


def _all_to_all(name: str, transport: Transport, length: int) -> _Contestant:
    rank, world_size = transport.rank, transport.world_size
    part = length // world_size
    send = torch.cat([torch.full((part,), 100.0 * rank + target) for target in range(world_size)])
    recv, splits = torch.empty(length), [part] * world_size
    return _Contestant(
        collective="all_to_all",
        transport=name,
        num_bytes=4 * length,
        prepare=lambda: recv.fill_(torch.nan),
        call=lambda: transport.all_to_all(send, splits, recv, splits),
        is_right=lambda calls: all(
            bool((got == 100.0 * source + rank).all()) for source, got in enumerate(recv.split(part))
        ),
    )


def _memcpy(length: int) -> _Contestant:
    source, target = torch.ones(length), torch.empty(length)
    return _Contestant(
        collective="memcpy",
        transport="memory",
        num_bytes=4 * length,
        prepare=lambda: target.fill_(torch.nan),
        call=lambda: target.copy_(source),
        is_right=lambda calls: bool((target == 1.0).all()),
    )


def _whole(rank: int) -> Tensor:
    """Return whole numbers from 1 to 16, other ones on each rank."""
    return (torch.arange(_PERIOD) + rank).remainder(_PERIOD).add(1).float()


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
