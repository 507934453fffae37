"""What every rank does in the tests of collectives, over any transport; returns plain values."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from collectives.exchange_programs import exchange_everything, finish_late, give_in_place, leave_one_behind
from ranks import join
from reference import bits, pairwise_sum, random_leaves
from unisono import collectives
from unisono.collectives.exchange import exchange_over
from unisono.collectives.pieces import padded_length
from unisono.collectives.placement import cut, place_evenly
from unisono.collectives.process_groups.transport import connect, device_of
from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.transport import Transport
from unisono.collectives.tree import accumulate
from unisono.errors import PeerLost, UnisonoError
from unisono.world import World

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
CASES = [
    (replicas, leaves)
    for replicas in (1, 2, 3, 4, 5, 8, 13, 16)
    for leaves in {1, replicas // 2, replicas - 1, replicas}
]


def reduce_once(
    transport: Transport,
    placement: list[range],
    leaves: int,
    dtype: torch.dtype,
    *,
    in_place: bool,
    serial: bool = False,
) -> tuple[bytes, bytes, int]:
    """Return the result's bytes, the reference's, and the bytes this rank has sent."""
    length = padded_length(37, transport.world_size)
    values = random_leaves(placement[-1].stop, [length], dtype, seed=leaves)
    for value in values:
        value[5] = -0.0
        value[6] = 0.0 if value is values[0] else -0.0
    hosted = placement[transport.rank]
    mine = [values[leaf].clone() for leaf in hosted if leaf < leaves]
    partials = accumulate(hosted.start, iter(mine), leaves, torch.add)
    out = partials[0][1] if in_place and partials else torch.full((length,), 7.0, dtype=dtype)
    before = transport.bytes_sent
    tree_all_reduce(partials, placement, leaves, out, transport)
    add: Callable[[Tensor, Tensor], Tensor] = torch.add
    expected = pairwise_sum(values[:leaves], add)
    if serial:
        expected = values[0]
        for value in values[1:leaves]:
            expected = expected + value
    return bits(out), bits(expected), transport.bytes_sent - before


def reduce_everything(transport: Transport | None) -> dict[str, Any]:
    """Reduce every case with every dtype; return what went wrong, and the numbers the tests ask for."""
    joined = join(transport)
    world_size = joined.world_size
    wrong, num_checked, num_idle, serial_differs = [], 0, 0, False
    for replicas, leaves in CASES:
        if world_size > replicas or leaves < 1:
            continue
        uneven = [*range(world_size), replicas]  # one replica each, the rest to the last rank
        placements = [place_evenly(replicas, world_size), [range(uneven[r], uneven[r + 1]) for r in range(world_size)]]
        for placement in placements:
            for dtype in DTYPES:
                for in_place in (False, True):
                    got, expected, _ = reduce_once(joined, placement, leaves, dtype, in_place=in_place)
                    num_checked += 1
                    num_idle += placement[joined.rank].start >= leaves
                    if got != expected:
                        wrong.append(f"{placement} {leaves} {dtype} {in_place}")
            got, expected, _ = reduce_once(joined, placement, leaves, torch.float32, in_place=False, serial=True)
            serial_differs |= got != expected
    got, _, sent = reduce_once(joined, place_evenly(8, world_size), 8, torch.float32, in_place=False)
    return {
        "wrong": wrong, "num_checked": num_checked, "num_idle": num_idle, "serial_differs": serial_differs,
        "sent": sent, "num_bytes": len(got), "signs": [got[4 * i + 3] >> 7 for i in (5, 6)],
    }  # fmt: skip


def error_of(act: Callable[[], object]) -> str:
    """Return class and message of the error that `act` raises."""
    try:
        act()
    except UnisonoError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def exchange_others(transport: Transport) -> str:
    """Let rank 1 exchange another last group; return what it says."""
    size = transport.world_size
    outs = [torch.zeros(64) for _ in range(64)]
    outs.append(torch.zeros(96 if transport.rank == 1 else 64, dtype=torch.float64))
    return error_of(lambda: exchange_over(transport).start(outs, place_evenly(size, size), 2))


def use_process_group(world: World, first: Transport) -> dict[str, Any]:
    """Do what a process group must be able to do."""
    seen: dict[str, Any] = {"pid": os.getpid(), "device": str(device_of(world))}
    again = connect(world, share_memory=False)
    seen["classes"] = [type(first).__name__, type(again).__name__]
    again.close()
    seen["is_open"] = dist.is_initialized()
    seen["gathered"] = first.all_gather_json({"rank": first.rank, "text": "ü" * first.rank})
    splits = [(first.rank + other) % 3 for other in range(first.world_size)]
    send = torch.cat([torch.full((n,), 10.0 * first.rank + other) for other, n in enumerate(splits)])
    recv = torch.empty(sum(splits))
    sent = first.bytes_sent
    first.all_to_all(send, splits, recv, splits)
    seen["swapped"] = recv.tolist()
    seen["swapped_bytes"] = first.bytes_sent - sent
    seen["other_size"] = error_of(lambda: connect(World(rank=0, world_size=world.world_size + 1, local_world_size=1)))
    return seen


def meet_again_and_again(transport: None) -> list[list[int]]:
    """Connect, talk and close, several times at one rendezvous."""
    talks = []
    for _ in range(4):
        joined = connect(World.current(), timeout_s=10)
        talks.append(joined.all_gather_json(joined.rank))
        joined.close()
    return talks


def execute(transport: None) -> dict[str, Any]:
    """Everything a launch of one world size is used for."""
    world = World.current()
    joined = connect(world, share_memory=False)
    seen = use_process_group(world, joined)
    seen["reduced"] = reduce_everything(joined)
    seen["exchange"] = exchange_everything(joined)
    seen["left_behind"] = leave_one_behind(joined)
    seen["in_place"] = give_in_place(joined)
    seen["late"] = finish_late(joined)
    seen["other_buckets"] = exchange_others(joined)
    # The last rank goes away without a word.
    if joined.rank < joined.world_size - 1:
        try:
            joined.barrier()
            seen["lost"] = "no error"
        except PeerLost as error:
            seen["lost"] = str(error)
    joined.close()
    joined.close()
    seen["is_closed"] = not dist.is_initialized()
    seen["alone"] = type(connect(World())).__name__
    seen["bad_rendezvous"] = error_of(lambda: connect(World(world_size=2, rendezvous="ftp://x")))
    with tempfile.TemporaryDirectory() as folder:
        nobody = World(world_size=2, local_world_size=2, rendezvous=f"file://{Path(folder, 'store')}")
        seen["nobody_came"] = error_of(lambda: connect(nobody, timeout_s=1.0))
    return seen


def gradients(part: range) -> tuple[list[Tensor], nn.Module]:
    """Return a small model's gradients on some samples."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(6, 4), torch.randn(96, 6), torch.randint(0, 4, (96,))
    F.cross_entropy(model(x[part.start : part.stop]), y[part.start : part.stop]).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None], model


def average(_: Transport | None) -> dict[str, Any]:
    """Average gradients as a tutorial does it, in a process that has made nothing before."""
    world, told = World.current(), {}
    for algorithm in ("ring", "tree"):
        _, model = gradients(cut(96, world.world_size)[world.rank])
        for parameter in model.parameters():
            collectives.all_reduce(parameter.grad, op="mean", algorithm=algorithm)
        told[algorithm] = [parameter.grad.tolist() for parameter in model.parameters()]
    return told
