"""The communication self-test: what each of two processes does, started as ``python -m unisono.doctor.talk FILE``.

They sum numbers through the transport and the tree that training would use on the CPU, compare with what the sum must
be, and take the time. Rank 0 writes to FILE, as JSON, what it saw of torch too.
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from unisono.collectives.pieces import padded_length
from unisono.collectives.process_groups.transport import connect
from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.transport import Transport
from unisono.world import World

WAIT_S = 60.0
"""Longest wait for the other process, which may still be loading torch; the conversation itself takes a moment."""
_ROUNDS = 50
_SIZES = (1 << 10, 1 << 18)


def converse(transport: Transport, rounds: int = _ROUNDS) -> dict[str, Any]:
    """Sum over all ranks again and again; all ranks call it.

    Returns:
        ``wrong``: sums that were not as expected; ``latency_us``: median of 4 KiB; ``mb_per_s``: of 1 MiB, as the
        buffer's size over the median time.
    """
    world_size, rank = transport.world_size, transport.rank
    placement = [range(leaf, leaf + 1) for leaf in range(world_size)]
    wrong, medians = 0, []
    for size in _SIZES:
        length = padded_length(size, world_size)
        steps = torch.arange(length, dtype=torch.float32)
        taken = []
        for number in range(rounds):
            # Whole numbers far below 2**24: their sums are exact in float32.
            mine, out = steps + (rank + 1) * (number + 1), torch.empty(length)
            began = time.perf_counter()
            tree_all_reduce([((rank, rank + 1), mine)], placement, world_size, out, transport)
            taken.append(time.perf_counter() - began)
            expected = steps * world_size + world_size * (world_size + 1) // 2 * (number + 1)
            wrong += not torch.equal(out, expected)
        medians.append(statistics.median(taken))
    wrongs: list[int] = transport.all_gather_json(wrong)
    return {"wrong": sum(wrongs), "latency_us": medians[0] * 1e6, "mb_per_s": _SIZES[1] * 4 / medians[1] / 1e6}


def describe_torch() -> dict[str, Any]:
    """Return what of torch and its GPUs decides how a run goes."""
    cuda = torch.cuda.is_available()
    return {
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if cuda else [],
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda and dist.is_nccl_available() else None,
    }


def main(path: str) -> None:
    """Take part as the world of this process says; rank 0 writes the result."""
    torch.set_num_threads(1)
    world = World.current()
    transport = connect(world, timeout_s=WAIT_S)
    try:
        seen = {**describe_torch(), "transport": type(transport).__name__, **converse(transport)}
    finally:
        transport.close()
    if world.is_leader:
        Path(path).write_text(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
