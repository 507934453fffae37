"""What every rank does in the tests of ranks on several hosts: the hosts are names given to `connect`."""

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from collectives.codec_programs import DTYPES, LEAVES, leaves_of, step
from collectives.exchange_programs import exchange_everything, leave_one_behind
from collectives.rank_programs import CASES, error_of, reduce_once
from reference import bits, pairwise_sum, random_leaves
from unisono.collectives.coding.rounding import ROUNDINGS
from unisono.collectives.exchange import exchange_over
from unisono.collectives.pieces import padded_length
from unisono.collectives.placement import place_evenly
from unisono.collectives.process_groups.across_hosts import HostsTransport
from unisono.collectives.process_groups.speakers import Hosts, carried, host_nodes, host_of
from unisono.collectives.process_groups.transport import connect
from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.shm.tuning import Plan
from unisono.collectives.transport import Transport
from unisono.collectives.tree import Node, accumulate, combine, push
from unisono.system.processes import name_of_this_host
from unisono.world import World

LAYOUTS = {3: ["aab", "abb"], 4: ["aabb", "aaab", "abbc"], 5: ["aaabb", "abbbb", "aabcc"]}
QUICK = 4
"""The world size that the default tests run: on it, fewer numbers of replicas."""
LENGTH = 5003


def compare(transport: Transport, flat: Transport) -> tuple[list[str], bool]:
    """Reduce every case over both; return what differs, and whether another order would have been seen."""
    wrong, serial_differs, size = [], False, transport.world_size
    for replicas, leaves in CASES:
        if size > replicas or leaves < 1 or (size == QUICK and replicas not in (QUICK, 13)):
            continue
        uneven = [*range(size), replicas]
        placements = [place_evenly(replicas, size), [range(uneven[r], uneven[r + 1]) for r in range(size)]]
        for placement in placements:
            dtype = (torch.float32, torch.bfloat16, torch.float64)[(replicas + leaves) % 3]
            got, expected, _ = reduce_once(transport, placement, leaves, dtype, in_place=replicas % 2 == 0)
            over_messages, _, _ = reduce_once(flat, placement, leaves, dtype, in_place=False)
            if got != expected or got != over_messages:
                wrong.append(f"{placement} {leaves} {dtype}")
            got, serial, _ = reduce_once(transport, placement, leaves, torch.float32, in_place=False, serial=True)
            serial_differs |= got != serial
    return wrong, serial_differs


def slices_across(hosts: Hosts, placement: Sequence[range], leaves: int) -> list[int]:
    """Return how many slices each rank sends to other hosts; a slice is the buffer over the number of ranks."""
    crossing = [len(found) for found in host_nodes(hosts, placement, leaves)]
    sent = []
    for rank in range(hosts[-1].stop):
        host = host_of(hosts, rank)
        foreign = [part for part in carried(hosts, rank) if part != rank]
        sent.append(crossing[host] * len(foreign) + len(hosts) - 1)  # partials to the owners, its result to the hosts
    return sent


def bytes_across(transport: HostsTransport, placement: Sequence[range], leaves: int, values: Any) -> int:
    """Return the bytes that this rank sends to other hosts for buckets of some values."""
    count = slices_across(transport.hosts, placement, leaves)[transport.rank]
    return sum(count * bucket[0].nbytes // transport.world_size for bucket in values)


def sum_coded(transport: HostsTransport) -> dict[str, list[int]]:
    """Sum buckets in several codec modes; return, for each step, the bytes sent if all sums are the tree's, else 0."""
    size, exchange = transport.world_size, exchange_over(transport)
    placement = place_evenly(LEAVES, size)
    sent: dict[str, list[int]] = {}
    for mode in ("none", "planes", "auto"):
        exchange.choose_codec(mode)
        sent[mode] = []
        for number in range(3):
            buckets = [leaves_of(padded_length(9000, size), dtype, seed=number) for dtype in DTYPES]
            before = transport.bytes_sent
            sums = step(exchange, placement, transport.rank, buckets)
            is_right = all(ours == tree for ours, tree in sums)
            sent[mode].append(transport.bytes_sent - before if is_right else 0)
    return sent


def sum_rounded(transport: HostsTransport) -> dict[str, dict[str, Any]]:
    """Sum rounded leaves; say whether every sum has the bits of one process, and what was sent and is to be sent.

    A host's sums are made in several pieces, and no leaf or sum begins at the flat gradient's first element.
    """
    size, replicas, exchange = transport.world_size, 8, exchange_over(transport)
    placement, length = place_evenly(replicas, size), padded_length(50_000, size)
    transport._within._collecting.plan = Plan(whole_bytes=0, piece_bytes=1 << 16)
    found: dict[str, dict[str, Any]] = {}
    for name, kind in ROUNDINGS.items():
        rounding = kind(seed=1, step=2, first=4800)
        leaves = [
            rounding.round_((number, number + 1), leaf)
            for number, leaf in enumerate(random_leaves(replicas, [length], torch.float32, seed=3))
        ]
        partials: list[tuple[Node, torch.Tensor]] = []
        for leaf in placement[transport.rank]:
            push(partials, leaf, leaves[leaf].clone(), replicas, torch.add, rounding.round_)
        one_off, before = torch.empty(length), transport.bytes_sent
        tree_all_reduce(partials, placement, replicas, one_off, transport, rounding=rounding)
        first = transport.bytes_sent - before
        out = partials[0][1]  # as in a training
        exchange.start([out], placement, replicas, [rounding])
        exchange.give(partials)
        exchange.finish()
        alone = {(number, number + 1): leaf for number, leaf in enumerate(leaves)}
        expected = bits(combine(alone, replicas, torch.add, settle=rounding.round_))
        width = rounding.room(out[: length // size])
        found[name] = {
            "right": [bits(one_off) == expected, bits(out) == expected],
            "leaves alone": bits(out) == bits(combine(alone, replicas, torch.add)),
            "sent": [first, transport.bytes_sent - before - first],
            "expected": slices_across(transport.hosts, placement, replicas)[transport.rank] * width,
        }
    return found


def reduce_large(transport: Transport, host_of_rank: list[int]) -> dict[str, Any]:
    """Reduce a buffer of many pieces; return whether it is right, and the bytes that crossed to other hosts."""
    size, replicas = transport.world_size, 8
    length, placement = padded_length(LENGTH, size), place_evenly(replicas, size)
    values = random_leaves(replicas, [length], torch.float32, seed=1)
    mine = [values[leaf].clone() for leaf in placement[transport.rank]]
    partials = accumulate(placement[transport.rank].start, iter(mine), replicas, torch.add)
    out, before = torch.empty(length), transport.bytes_sent
    tree_all_reduce(partials, placement, replicas, out, transport)
    expected = slices_across(transport.hosts, placement, replicas)[transport.rank] * out.nbytes // size
    # Rank by rank: each partial to each owner on another host, and the own slice to each rank there.
    abroad = sum(other != host_of_rank[transport.rank] for other in host_of_rank)
    flat = (len(partials) + 1) * abroad * out.nbytes // size
    return {
        "right": bits(out) == bits(pairwise_sum(values, torch.add)),
        "crossed": transport.bytes_sent - before, "expected": expected, "flat": flat,
    }  # fmt: skip


def execute(transport: None) -> dict[str, Any]:
    """Everything a launch of one world size is used for; the last rank leaves at the end without a word."""
    world = World.current()
    flat = connect(world, share_memory=False, timeout_s=30)
    seen: dict[str, Any] = {"layouts": {}}
    for names in LAYOUTS[world.world_size]:
        joined = connect(world, host=names[world.rank], timeout_s=30)
        found: dict[str, Any] = {"class": type(joined).__name__}
        seen["layouts"][names] = found
        if isinstance(joined, HostsTransport):
            found["wrong"], found["serial_differs"] = compare(joined, flat)
            found |= reduce_large(joined, [ord(name) for name in names])
            with ThreadPoolExecutor(1) as helper:
                found["exchange"] = exchange_everything(joined, bytes_across, helper)
            found["left_behind"] = leave_one_behind(joined)
            found["coded"] = sum_coded(joined)
            found["rounded"] = sum_rounded(joined)
    seen["alike"] = type(connect(world, host="a", timeout_s=30)).__name__
    seen["own"] = name_of_this_host() == name_of_this_host() != "a"
    if world.world_size != 4:
        flat.close()
        return seen
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen["in turn"] = type(connect(world, host="abab"[world.rank], timeout_s=30)).__name__
    seen["warned"] = [str(warning.message) for warning in caught]
    joined = connect(world, host="aabb"[world.rank], timeout_s=30)
    seen |= disagree(joined)
    joined.close()
    flat.close()  # gloo's threads must not outlive the interpreter, least of all with a lost peer
    return seen


def disagree(joined: Transport) -> dict[str, Any]:
    """Let rank 1 do something else than the others; then let the last rank go away."""
    rank, size = joined.rank, joined.world_size
    placement = place_evenly(size, size)

    def reduce(length: int) -> None:
        value = torch.ones(padded_length(length, size))
        tree_all_reduce([((rank, rank + 1), value)], placement, size, value, joined)

    joined.step = 7
    seen = {
        "other_size": error_of(lambda: reduce(100 if rank == 1 else 300)),
        "other_call": error_of(lambda: joined.barrier() if rank == 1 else reduce(100)),
    }
    joined.step = 8 + (rank == 1)
    seen["other_step"] = error_of(lambda: reduce(100))
    joined.step = 9
    reduce(100)
    if rank < size - 1:
        seen["lost"] = error_of(lambda: [reduce(100) for _ in range(1000)])
    return seen
