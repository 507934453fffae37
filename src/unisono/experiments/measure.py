"""How long collectives take: the program that every rank runs under ``unisono bench collectives``.

In: message sizes and a number of repetitions. Out: rows of plain values. What is compared is measured in one run, turn
by turn, so that a busy machine slows all alike; one repetition is a few calls in a row, and lasts as long as on the
slowest rank. Every repetition's result is checked.
"""

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

import torch.distributed as dist

from unisono.collectives.process_groups.transport import ProcessGroupTransport, connect
from unisono.collectives.shm import backend
from unisono.collectives.transport import Transport
from unisono.errors import ConfigError, RankDivergence
from unisono.experiments.contestants import Contestant, rounds
from unisono.world import World

TIMEOUT_S = 300.0
_REPETITION_S = 2e-3  # calls are repeated until a repetition takes about as long


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """One row: a collective over a transport at one size."""

    ranks: int  #: Number of ranks.
    #: A function of torch.distributed, ``tree_all_reduce`` (this package's sum, which the exact step uses), or
    #: ``memcpy``.
    collective: str
    transport: str  #: ``shm`` or ``gloo``; ``memory``: each rank copies a buffer of its own.
    bytes: int  #: The whole buffer: what is reduced or broadcast, cut into parts, or put together from parts.
    repeat: int  #: Number of repetitions.
    calls: int  #: Calls in one repetition; times are per call.
    median_s: float  #: Median over the repetitions.
    q1_s: float  #: A quarter of them were not slower.
    q3_s: float  #: Three quarters of them were not slower.
    bytes_per_s: float | None  #: ``bytes / median_s``; None for a barrier.


def measure(sizes: Sequence[int], repeat: int, only: Sequence[str], out: str) -> None:
    """Measure collectives at every size in the world of this process; rank 0 writes the rows as JSON to `out`.

    All ranks call it; it blocks.

    Args:
        sizes: Bytes of the buffers; rounded up to a multiple of 64 bytes for each rank.
        repeat: Number of repetitions of each.
        only: Names of collectives; none means all.
        out: File for the rows, and for the plan by which reductions through shared memory are cut.

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
    groups = {"gloo": dist.new_group(backend="gloo")}
    transports: dict[str, Transport] = {"gloo": gloo}
    if shared.board is not None:
        groups = {backend.NAME: dist.new_group(backend=backend.NAME), **groups}
        transports = {backend.NAME: shared, **transports}
    try:
        turns = rounds(groups, transports, sizes, only)
        rows = [row for contestants in turns for row in _compete(contestants, repeat, shared)]
        plan = None if shared.board is None else asdict(shared.board.plan)
        if world.is_leader:
            Path(out).write_text(json.dumps({"rows": [asdict(row) for row in rows], "plan": plan}))
        gloo.barrier()  # nobody leaves while another still measures
    finally:
        shared.close()


def _compete(contestants: Sequence[Contestant], repeat: int, control: Transport) -> Iterator[Timing]:
    """Measure contestants turn by turn, with another first each time.

    `control` lets the ranks begin together: the transport with the quickest barrier.
    """
    calls = []
    for one in contestants:
        _time(one, 1, control)  # the first call touches the memory and opens connections
        once_s = _time(one, min(2, one.most_calls), control)
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
            ranks=control.world_size, collective=one.collective, transport=one.transport, bytes=one.num_bytes,
            repeat=repeat, calls=count, median_s=median, q1_s=q1, q3_s=q3,
            bytes_per_s=one.num_bytes / median if one.num_bytes else None,
        )  # fmt: skip


def _time(one: Contestant, calls: int, control: Transport) -> float:
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
