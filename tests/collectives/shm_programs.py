"""What every rank does in the tests of the shared-memory transport; returns plain values."""

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from collectives.rank_programs import error_of, reduce_everything
from reference import bits
from unisono.collectives.pieces import padded_length
from unisono.collectives.placement import place_evenly
from unisono.collectives.process_groups.transport import connect
from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.shm.autotune import settle_plan
from unisono.collectives.shm.transport import over_shared_memory
from unisono.collectives.shm.tuning import Plan
from unisono.collectives.transport import Transport
from unisono.collectives.tree import accumulate
from unisono.world import World

TINY_SLOT = 8192


def same_as_messages(shared: Transport, messages: Transport) -> list[str]:
    """Compare reductions of many pieces with those over the other transport; return what differs."""
    wrong = []
    world_size = shared.world_size
    for number, (replicas, length) in enumerate([(world_size, 1), (8, 777), (13, 5000), (16, 20000)]):
        placement = place_evenly(replicas, world_size)
        size = padded_length(length, world_size)
        leaves = [torch.randn(size, generator=torch.Generator().manual_seed(leaf)) for leaf in range(replicas)]
        hosted = placement[shared.rank]
        for whole_bytes in (0, 32 << 10, 1 << 40):
            shared.board.plan = Plan(whole_bytes=whole_bytes, piece_bytes=TINY_SLOT >> number)
            outs = []
            for transport in (shared, messages):
                mine = (leaves[leaf].clone() for leaf in hosted)
                partials = accumulate(hosted.start, mine, replicas, torch.add)
                outs.append(partials[0][1] if number % 2 else torch.empty(size))
                tree_all_reduce(partials, placement, replicas, outs[-1], transport)
            if bits(outs[0]) != bits(outs[1]):
                wrong.append(f"{replicas} replicas, {length} elements, whole {whole_bytes}")
    return wrong


def move_everything(transport: Transport) -> list[str]:
    """Gather and exchange tensors of many sizes and dtypes; return what did not arrive."""
    wrong = []
    rank, size = transport.rank, transport.world_size
    for dtype in (torch.uint8, torch.bfloat16, torch.float64, torch.int64, torch.bool):
        for length in (0, 1, 33, 3000, 20000):
            own = (torch.arange(length) + rank).to(dtype)
            got = torch.empty(length * size, dtype=dtype)
            transport.all_gather(own, got)
            expected = [(torch.arange(length) + other).to(dtype) for other in range(size)]
            if not torch.equal(got, torch.cat([*expected, own[:0]])):
                wrong.append(f"all_gather {dtype} {length}")
            # Rank i sends (i + 2 j) % 5 times `length` / 5 elements to rank j.
            counts = [[(i + 2 * j) % 5 * length // 5 for j in range(size)] for i in range(size)]
            send = torch.cat([torch.full((counts[rank][j],), rank + j).to(dtype) for j in range(size)])
            splits = [counts[i][rank] for i in range(size)]
            received = torch.empty(sum(splits), dtype=dtype)
            transport.all_to_all(send, counts[rank], received, splits)
            expected = [torch.full((counts[i][rank],), rank + i).to(dtype) for i in range(size)]
            if not torch.equal(received, torch.cat(expected)):
                wrong.append(f"all_to_all {dtype} {length}")
    return wrong


def execute(transport: None) -> dict[str, Any]:
    """Everything one launch is used for; the last rank dies at the end without a word."""
    world = World.current()
    messages = connect(world, share_memory=False, timeout_s=30)
    default = over_shared_memory(messages, timeout_s=20)
    shared = over_shared_memory(messages, timeout_s=20, slot_bytes=TINY_SLOT)
    seen: dict[str, Any] = {"class": type(shared).__name__, "default": type(connect(world)).__name__}
    seen["reduced"] = reduce_everything(default)
    seen["differs"] = same_as_messages(shared, messages)
    seen["lost_in_transit"] = move_everything(shared)
    seen["other_size"] = error_of(lambda: shared.all_gather(torch.zeros(3 + shared.rank), torch.zeros(64)))
    other = shared.barrier if shared.rank else lambda: shared.all_gather(torch.zeros(1), torch.zeros(shared.world_size))
    seen["other_call"] = error_of(other)
    seen["splits"] = error_of(
        lambda: shared.all_to_all(
            torch.zeros(shared.world_size), [1] * shared.world_size, torch.zeros(0), [0] * shared.world_size
        )
    )
    hasty = over_shared_memory(messages, timeout_s=0.3)
    if shared.rank:
        seen["late"] = error_of(hasty.barrier)
    messages.barrier()  # which rank 0 is in already
    pids = shared.all_gather_json(os.getpid())
    if shared.rank == shared.world_size - 1:
        return seen
    started = time.monotonic()
    seen["dead"] = error_of(lambda: [shared.barrier() for _ in range(1_000_000)])
    seen["expected_dead"] = f"rank {shared.world_size - 1} (process {pids[-1]}) has died"
    seen["dead_after_s"] = time.monotonic() - started
    return seen


def leave_early(transport: None) -> str:
    """End at once after the last meeting: who is still in it must not take that for a death."""
    shared = connect(World.current(), timeout_s=20)
    for _ in range(300):
        shared.barrier()
    return "done"


def settle(transport: None, cache: str) -> dict[str, Any]:
    """Settle the plan with an empty or a filled cache."""
    shared = over_shared_memory(connect(World.current(), share_memory=False), timeout_s=20)
    before = shared.board.num_meetings
    plan = settle_plan(shared, Path(cache))
    return {"plan": asdict(plan), "measured": shared.board.num_meetings - before > 50}
