"""What every rank does in the tests of the operations, and the naive results they are compared with."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from reference import bits, pairwise_sum, random_leaves
from unisono.collectives.reductions import REDUCTIONS, is_defined
from unisono.collectives.shm.join import share_memory
from unisono.collectives.shm.operations import Collectives
from unisono.errors import UnisonoError
from unisono.world import World

SLOT_BYTES = 1024
DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn,
]  # fmt: skip
SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (5, 1, 13), (257,), (31, 33)]
LAYOUTS = ["contiguous", "transposed", "strided", "offset", "conjugate"]


def open_group(slot_bytes: int = SLOT_BYTES, timeout_s: float = 60, name: str = "test") -> Collectives:
    """Join the ranks of this launch."""
    world = World.current()
    store = dist.FileStore(world.rendezvous.removeprefix("file://"), world.world_size)
    board, _ = share_memory(dist.PrefixStore(name, store), world.rank, world.world_size, timeout_s, slot_bytes)
    return Collectives(board)


@dataclass(frozen=True)
class Case:
    """One call, the same on every rank."""

    operation: str
    op: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: str
    root: int
    seed: int

    def leaf(self, rank: int, index: int = 0, extra: int | None = None) -> Tensor:
        """Return what a rank holds; `extra` lengthens it by some rows."""
        shape = self.shape if extra is None else (extra, *self.shape)
        seed = self.seed * 10_000 + rank * 100 + index
        floats = random_leaves(1, shape, torch.float64, seed)[0]
        if self.dtype.is_complex:
            return torch.complex(floats, random_leaves(1, shape, torch.float64, seed + 5000)[0]).to(self.dtype)
        if self.dtype == torch.bool:
            return floats > 0
        return floats.clamp(-1e4, 1e4).abs().to(self.dtype) if self.dtype == torch.uint8 else floats.to(self.dtype)

    def laid_out(self, value: Tensor) -> Tensor:
        """Return an equal tensor with the strides of this case."""
        if self.layout == "transposed" and value.dim() > 1:
            return value.transpose(0, -1).contiguous().transpose(0, -1)
        if self.layout == "strided":
            return torch.stack([value, value], dim=-1).clone()[..., 1]
        if self.layout == "offset":
            return torch.cat([value.reshape(-1)[:1], value.reshape(-1)])[-value.numel() :].view(value.shape) \
                if value.numel() else value.clone()  # fmt: skip
        if self.layout == "conjugate" and value.is_complex():
            return value.conj().resolve_conj().conj()
        return value.clone()

    def combined(self, values: list[Tensor]) -> Tensor:
        """Return the naive result of a reduction."""
        total: Tensor = pairwise_sum(values, REDUCTIONS[self.op])
        if self.op != "AVG":
            return total
        mean = total / len(values)
        # A quotient of whole numbers below 2^53 has the right whole part; copying cuts toward zero.
        return mean if mean.dtype == total.dtype else total.copy_(total.double() / len(values))


def act(group: Collectives, case: Case) -> tuple[list[Tensor], list[Tensor]]:
    """Make the call; return what this rank got, and what it should have got."""
    rank, ranks, root = group.rank, range(group.world_size), case.root
    mine = case.laid_out(case.leaf(rank))
    blank = case.laid_out(case.leaf(90 + rank))
    if case.operation == "broadcast":
        group.broadcast(mine, root)
        return [mine], [case.leaf(root)]
    if case.operation == "scatter":
        group.scatter(blank, [case.laid_out(case.leaf(root, j)) for j in ranks] if rank == root else None, root)
        return [blank], [case.leaf(root, rank)]
    if case.operation == "gather":
        outs = [blank.clone() for _ in ranks]
        group.gather(mine, outs if rank == root else None, root)
        return [mine, *outs], [case.leaf(rank), *(case.leaf(i) if rank == root else blank for i in ranks)]
    if case.operation == "reduce":
        group.reduce(mine, root, case.op)
        return [mine], [case.combined([case.leaf(i) for i in ranks]) if rank == root else case.leaf(rank)]
    if case.operation == "all_reduce":
        group.all_reduce(mine, case.op)
        return [mine], [case.combined([case.leaf(i) for i in ranks])]
    if case.operation == "all_gather":
        outs = [case.laid_out(case.leaf(99, i, extra=i)) for i in ranks]
        group.all_gather(outs, case.laid_out(case.leaf(rank, extra=rank)))
        return outs, [case.leaf(i, extra=i) for i in ranks]
    if case.operation == "all_gather_single":
        out = case.laid_out(case.leaf(99, extra=len(ranks)))
        group.all_gather_single(out, mine)
        return [out], [torch.stack([case.leaf(i) for i in ranks])]
    if case.operation == "reduce_scatter":
        parts = [case.laid_out(case.leaf(rank, j, extra=j)) for j in ranks]
        out = case.laid_out(case.leaf(99, extra=rank))
        group.reduce_scatter(out, parts, case.op)
        return [out], [case.combined([case.leaf(i, rank, extra=rank) for i in ranks])]
    if case.operation == "reduce_scatter_single":
        whole = case.laid_out(torch.stack([case.leaf(rank, j) for j in ranks]))
        group.reduce_scatter_single(blank, whole, case.op)
        return [blank], [case.combined([case.leaf(i, rank) for i in ranks])]
    assert case.operation == "all_to_all"
    outs = [case.laid_out(case.leaf(99, i, extra=(3 * i + rank) % 4)) for i in ranks]
    group.all_to_all(outs, [case.laid_out(case.leaf(rank, j, extra=(3 * rank + j) % 4)) for j in ranks])
    return outs, [case.leaf(i, rank, extra=(3 * i + rank) % 4) for i in ranks]


OPERATIONS = {
    "broadcast": False, "scatter": False, "gather": False, "all_gather": False, "all_gather_single": False,
    "all_to_all": False, "reduce": True, "all_reduce": True, "reduce_scatter": True, "reduce_scatter_single": True,
}  # fmt: skip
"""The operations, and whether they reduce."""


def cases(world_size: int, rounds: int, seed: int) -> list[Case]:
    """Return every operation with every dtype (and operator), in shapes, layouts and roots drawn at random."""
    draw = random.Random(seed)
    found = []
    for _ in range(rounds):
        for operation, is_reduction in OPERATIONS.items():
            for dtype in DTYPES:
                known = [op for op in REDUCTIONS if is_defined(op, dtype)] if is_reduction else ["-"]
                for op in known if operation == "all_reduce" else draw.sample(known, min(1, len(known))):
                    root = draw.randrange(world_size)
                    seed = draw.randrange(1 << 20)
                    found.append(Case(operation, op, dtype, draw.choice(SHAPES), draw.choice(LAYOUTS), root, seed))
    draw.shuffle(found)
    return found


def use_everything(transport: None, rounds: int) -> dict[str, Any]:
    """Make all calls; return what went wrong, and a hash of all results that every rank must share."""
    group = open_group()
    wrong, digest, chosen = [], hashlib.sha256(), cases(group.world_size, rounds, seed=group.world_size)
    for case in chosen:
        got, expected = act(group, case)
        if list(map(plain_bits, got)) != list(map(plain_bits, expected)):
            wrong.append(str(case))
        if case.operation in ("all_reduce", "all_gather", "broadcast"):
            digest.update(b"".join(map(plain_bits, got)))
    meetings = group.board.num_meetings
    return {
        "wrong": wrong, "num_cases": len(chosen), "digest": digest.hexdigest(), "num_meetings": meetings,
        "mismatches": disagree(group), "refusals": refuse(group), "sum": sum_leaves(group), "still": still_works(group),
    }  # fmt: skip


def plain_bits(tensor: Tensor) -> bytes:
    """Return the bytes in logical order, whatever the strides."""
    return bits(torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor))


def sum_leaves(group: Collectives) -> dict[str, bool]:
    """Sum a buffer of many pieces; return whether it equals the tree, and a serial sum."""
    leaves = random_leaves(group.world_size, [3001], torch.float32, seed=3)
    total = leaves[group.rank].clone()
    group.all_reduce(total)
    serial = leaves[0]
    for leaf in leaves[1:]:
        serial = serial + leaf
    backwards = pairwise_sum(leaves[::-1], torch.add)
    return {
        "tree": torch.equal(total, pairwise_sum(leaves, torch.add)),
        "serial": torch.equal(total, serial), "backwards": torch.equal(total, backwards),
    }  # fmt: skip


def still_works(group: Collectives) -> bool:
    """Whether the ranks still understand each other."""
    value = torch.full((3,), float(group.rank))
    group.all_reduce(value)
    return value.tolist() == [float(sum(range(group.world_size)))] * 3


def error_of(call: Callable[[], object]) -> str:
    """Return class and message of the error that a call raises."""
    try:
        call()
    except UnisonoError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def disagree(group: Collectives) -> dict[str, str]:
    """Let the last rank do something else than the others, in all ways; return the errors by what differs."""
    odd, ranks, size = group.rank == group.world_size - 1, range(group.world_size), group.world_size
    three = torch.ones(3)

    def pick(of_most: Any, of_last: Any) -> Any:
        return of_last if odd else of_most

    kind = pick(torch.int64, torch.float32)  # as torchmetrics makes it on a rank without labels
    splits = [torch.ones(1 + (odd and j == 0)) for j in ranks]
    calls: dict[str, Callable[[], object]] = {
        "shape": lambda: group.all_reduce(torch.ones(pick(3, 4))),
        "dimensions": lambda: group.broadcast(torch.ones(pick((2, 3), (3, 2))), 0),
        "dtype": lambda: group.all_reduce(three.to(pick(torch.float32, torch.int32))),
        "shard": lambda: group.all_gather([torch.zeros(3, dtype=kind)] * size, torch.zeros(3, dtype=kind)),
        "operator": lambda: group.all_reduce(three, pick("SUM", "MAX")),
        "root": lambda: group.broadcast(three, pick(0, size - 1)),
        "operation": lambda: pick(group.all_reduce, lambda t: group.reduce(t, 0))(three),
        "barrier": lambda: pick(group.barrier, lambda: group.all_reduce(three))(),
        "large": lambda: group.all_reduce(torch.ones(pick(3000, 3001))),
        "list": lambda: group.all_gather([three.clone() for _ in range(pick(size, 1))], three),
        "input": lambda: group.all_gather([three.clone() for _ in ranks], torch.ones(pick(3, 2))),
        "unknown": lambda: group.all_reduce(three, pick("SUM", "BAND")),
        "no list": lambda: group.scatter(three.clone(), None, size - 1),
        "splits": lambda: group.all_to_all([torch.empty(1) for _ in ranks], splits),
    }  # fmt: skip
    errors = {}
    for name, call in calls.items():
        errors[name] = error_of(call)
        assert still_works(group), name
    return errors


def refuse(group: Collectives) -> dict[str, str]:
    """Ask on all ranks for what cannot be done; return the errors."""
    ranks = range(group.world_size)
    return {
        "root": error_of(lambda: group.broadcast(torch.ones(3), 9)),
        "bits of floats": error_of(lambda: group.all_reduce(torch.ones(3), "BAND")),
        "mean of truth values": error_of(lambda: group.all_reduce(torch.ones(3, dtype=torch.bool), "AVG")),
        "float8": error_of(lambda: group.all_reduce(torch.ones(3).to(torch.float8_e4m3fn))),
        "whole": error_of(lambda: group.all_gather_single(torch.ones(len(ranks) * 3 + 1), torch.ones(3))),
    }
