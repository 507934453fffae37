"""Exchanges of several buckets, over any transport, as programs that ranks run; they return plain values."""

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from reference import bits, pairwise_sum, random_leaves
from unisono.collectives.exchange import Exchange, exchange_over
from unisono.collectives.pieces import padded_length
from unisono.collectives.placement import place_evenly
from unisono.collectives.transport import Transport
from unisono.collectives.tree import accumulate, owned_nodes

SIZES = ((700, torch.float32), (64, torch.float64), (3000, torch.bfloat16), (90, torch.complex64), (512, torch.float32))
"""Elements (before padding) and dtype of each bucket."""


def placements(replicas: int, world_size: int) -> list[list[range]]:
    """Return an even placement, and one with most replicas on the last rank."""
    uneven = [*range(world_size), replicas]
    return [
        place_evenly(replicas, world_size),
        [range(start, stop) for start, stop in itertools.pairwise(uneven)],
    ]


def values_of(replicas: int, world_size: int) -> list[list[Tensor]]:
    """Return the leaves of each bucket."""
    made = []
    for seed, (length, dtype) in enumerate(SIZES):
        real = torch.float64 if dtype.is_complex else dtype
        parts = random_leaves(replicas, [padded_length(length, world_size)], real, seed)
        made.append([torch.complex(part, -part.flip(0)).to(dtype) if dtype.is_complex else part for part in parts])
        for leaf in made[-1]:
            leaf[5] = -0.0
    return made


def sum_buckets(
    exchange: Exchange, transport: Transport, placement: Sequence[range], leaves: int, values: list[list[Tensor]],
    *, helper: ThreadPoolExecutor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Sum all buckets in one step of the exchange; a first partial takes the result where it may, as in a training.

    With a `helper` it does so in two threads.
    """
    hosted = [leaf for leaf in placement[transport.rank] if leaf < leaves]
    partials = [
        accumulate(hosted[0] if hosted else 0, [bucket[leaf].clone() for leaf in hosted], leaves, torch.add)
        for bucket in values
    ]
    outs = _places(exchange, placement, leaves, partials, values)
    exchange.start(outs, placement, leaves)
    finished = None if helper is None else helper.submit(exchange.finish)
    for found in partials:
        exchange.give(found)
    exchange.finish() if finished is None else finished.result()
    return outs


def _places(
    exchange: Exchange, placement: Sequence[range], leaves: int, partials: list[Any], values: list[list[Tensor]]
) -> list[Tensor]:
    """Return where results come: where the first partial lies, if that may be."""
    is_apart = exchange.lies_apart(placement, leaves)
    return [
        found[0][1] if found and not is_apart else torch.full_like(bucket[0], 7)
        for found, bucket in zip(partials, values, strict=True)
    ]


def formula(transport: Transport, placement: Sequence[range], leaves: int, values: list[list[Tensor]]) -> int:
    """Return the bytes a rank hands over: each partial's foreign chunks, and the sum of its own chunk to all others."""
    size = transport.world_size
    num_partials = len(owned_nodes(tuple(placement), leaves)[transport.rank])
    return sum((num_partials + 1) * (size - 1) * bucket[0].nbytes // size for bucket in values)


def tell_in_steps(transport: Transport) -> list[list[list[int]]]:
    """Return what all ranks have told in three steps of one exchange, beside its sums."""
    size, exchange = transport.world_size, exchange_over(transport)
    values, placement, told = values_of(size, size), place_evenly(size, size), []
    for number in range(3):
        partials = [[((transport.rank, transport.rank + 1), bucket[transport.rank].clone())] for bucket in values]
        outs = _places(exchange, placement, size, partials, values)
        exchange.start(outs, placement, size)
        for found in partials:
            exchange.give(found)
        wait = exchange.tell(torch.tensor([transport.rank, number, 7], dtype=torch.uint8))
        exchange.finish()
        told.append(wait().tolist())
        sums = [bits(out) == bits(pairwise_sum(bucket, torch.add)) for out, bucket in zip(outs, values, strict=True)]
        assert all(sums)
    return told


def exchange_everything(
    transport: Transport, formula: Callable[..., int] = formula, helper: ThreadPoolExecutor | None = None
) -> dict[str, Any]:
    """Sum every case; return what was wrong, whether another order would have been seen, and the bytes.

    Args:
        transport: Joins the ranks.
        formula: Returns the bytes that a rank is to send.
        helper: See `sum_buckets`.
    """
    size, exchange = transport.world_size, exchange_over(transport)
    wrong, num_checked, serial_differs, sent = [], 0, False, {}
    for replicas in (size, 2 * size, 3 * size - 1, 4 * size):
        values = values_of(replicas, size)
        for placement in placements(replicas, size):
            for leaves in {1, replicas - 1, replicas} - {0}:
                before = transport.bytes_sent
                outs = sum_buckets(exchange, transport, placement, leaves, values, helper=helper)
                counted, expected = transport.bytes_sent - before, formula(transport, placement, leaves, values)
                case = f"{[len(hosted) for hosted in placement]} {leaves}"
                sent[case] = [counted, expected, sum(out.nbytes for out in outs)]
                for out, bucket in zip(outs, values, strict=True):
                    num_checked += 1
                    if bits(out) != bits(pairwise_sum(bucket[:leaves], torch.add)):
                        wrong.append(f"{case} {out.dtype}")
                    serial = bucket[0]
                    for leaf in bucket[1:leaves]:
                        serial = serial + leaf
                    serial_differs |= bits(out) != bits(serial)
    return {"class": type(exchange).__name__, "wrong": wrong, "num_checked": num_checked,
            "serial_differs": serial_differs, "sent": sent, "told": tell_in_steps(transport)}  # fmt: skip


def leave_one_behind(transport: Transport) -> dict[str, Any]:
    """Give up a step in the middle of its exchange; return whether a later one over the same ranks is right."""
    size = transport.world_size
    values, placement = values_of(size, size), place_evenly(size, size)
    left = exchange_over(transport)
    mine = values[0][transport.rank].clone()
    outs = [torch.full_like(bucket[0], 3) for bucket in values]
    left.start(outs, placement, size)
    left.give([((transport.rank, transport.rank + 1), mine)])
    left.give_up()
    totals = [bits(pairwise_sum(bucket, torch.add)) for bucket in values]
    found = [sum_buckets(exchange_over(transport), transport, placement, size, values) for _ in range(2)]
    return {"right": all(bits(out) == total for outs in found for out, total in zip(outs, totals, strict=True))}


def give_in_place(transport: Transport) -> str:
    """Give a partial sum where its result must not come, in a step that is given up; return what is said."""
    size, exchange = transport.world_size, exchange_over(transport)
    mine, placement = torch.ones(64 * size), place_evenly(size, size)
    if not exchange.lies_apart(placement, size):
        return ""
    exchange.start([mine, mine.clone()], placement, size)
    try:
        exchange.give([((transport.rank, transport.rank + 1), mine)])
    except ValueError as error:
        return str(error)
    finally:
        exchange.give_up()
    return ""


def finish_late(transport: Transport) -> dict[str, Any]:
    """Sum more buckets than a rank expects at once; the last rank gives all of them, but finishes late.

    The others soon have all that they are to add, into memory that they are still sending from.
    """
    size, exchange = transport.world_size, exchange_over(transport)
    buckets = [random_leaves(size, [padded_length(64, size)], torch.float32, seed) for seed in range(24)]
    mine, placement = [bucket[transport.rank].clone() for bucket in buckets], place_evenly(size, size)
    outs = _places(exchange, placement, size, [[(None, part)] for part in mine], buckets)
    exchange.start(outs, placement, size)
    with ThreadPoolExecutor(1) as helper:
        finished = helper.submit(exchange.finish) if transport.rank < size - 1 else None
        for part in mine:
            exchange.give([((transport.rank, transport.rank + 1), part)])
        until, first = time.monotonic() + 0.5, outs[-1].clone()
        while finished is not None and time.monotonic() < until and torch.equal(outs[-1], first):
            time.sleep(0.01)
        transport.barrier()
        exchange.finish() if finished is None else finished.result()
    totals = [bits(pairwise_sum(bucket, torch.add)) for bucket in buckets]
    return {"right": [bits(out) for out in outs] == totals}
