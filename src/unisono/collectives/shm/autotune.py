"""Measure how this host's ranks reduce fastest through shared memory; all ranks take part."""

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from unisono.collectives.pieces import padded_length
from unisono.collectives.placement import place_evenly
from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.shm import tuning
from unisono.collectives.shm.tuning import Plan, PlanTiming
from unisono.collectives.transport import Transport

SIZES = (16 << 10, 128 << 10, 1 << 20, 16 << 20)
_REPEAT = 4


def settle_plan(transport: Transport, cache: Path) -> Plan:
    """Give the board of `transport` this host's plan: the kept one, else a measured one; collective.

    Where there are more ranks than cores a measurement would only see the scheduler: the default is taken.
    """
    board = transport.board
    assert board is not None
    file = tuning.plan_file(cache, transport.world_size)
    kept = tuning.load(file) if transport.rank == 0 else None
    told = transport.all_gather_json(None if kept is None else dataclasses.asdict(kept))[0]
    if told is not None:
        board.plan = Plan(**told)
    elif transport.world_size <= (os.cpu_count() or 1):
        best = tuning.choose(list(timings(transport)))  # some tenths of a second; rank 0's timings count
        board.plan = Plan(**transport.all_gather_json(dataclasses.asdict(best))[0])
        if transport.rank == 0:
            tuning.save(file, board.plan)
    return board.plan


def timings(transport: Transport) -> Iterator[PlanTiming]:
    """Yield a timing (the fastest of a few) for each size and candidate plan; collective."""
    board = transport.board
    assert board is not None
    before, counted = board.plan, transport.bytes_sent
    placement = place_evenly(transport.world_size, transport.world_size)
    node = (transport.rank, transport.rank + 1)
    for num_bytes in SIZES:
        buffer = torch.zeros(padded_length(num_bytes // 4, transport.world_size))
        for whole_bytes in (0, buffer.nbytes):
            for piece_bytes in (board.slot_bytes, board.slot_bytes // 2, board.slot_bytes // 4):
                board.plan = Plan(whole_bytes=whole_bytes, piece_bytes=piece_bytes)
                seconds = []
                for _ in range(_REPEAT):
                    transport.barrier()
                    started = time.perf_counter()
                    tree_all_reduce([(node, buffer)], placement, transport.world_size, buffer, transport)
                    seconds.append(time.perf_counter() - started)
                yield PlanTiming(num_bytes=buffer.nbytes, plan=board.plan, seconds=min(seconds))
    board.plan, transport.bytes_sent = before, counted
