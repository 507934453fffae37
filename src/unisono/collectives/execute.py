"""Schedules for real: the moves of `schedules`, carried by a transport; the bits are those of `simulate`.

`all_reduce` is the public face: one tensor, the ranks that this process is among, an algorithm by its name.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from unisono.collectives.pieces import padded_length
from unisono.collectives.placement import cut
from unisono.collectives.places import HERE, current_world
from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.reductions import REDUCTIONS, divide, is_defined
from unisono.collectives.schedules import Move, Schedule, plan
from unisono.collectives.transport import Transport
from unisono.collectives.tree import add_up
from unisono.determinism.devices import is_gpu
from unisono.errors import ConfigError
from unisono.system.hints import nearest

Combine = Callable[[Tensor, Tensor], Tensor]

ALGORITHMS = ("ring", "tree", "halving_doubling", "owner_computes", "naive_ring")
OPERATORS = {"sum": "SUM", "mean": "AVG", "min": "MIN", "max": "MAX", "product": "PRODUCT"}
_found: list[Transport] = []  # of a program without a run; the process keeps it until it ends


def all_reduce(
    tensor: Tensor, op: str = "sum", algorithm: str = "ring", *, transport: Transport | None = None
) -> Tensor:
    """Replace a tensor, on every rank, by what all ranks have in its place, combined; collective.

    The ranks are those of the open run; without one, those that the program was started with (``unisono run``,
    torchrun, srun, mpirun) or has joined by ``torch.distributed.init_process_group``. Alone, the tensor stays as it is.

    Args:
        tensor: Of equal shape and dtype on all ranks; dense, of any strides. Overwritten, outside of autograd.
        op: ``sum``, ``mean`` (integers: toward zero), ``min``, ``max`` or ``product``.
        algorithm: Who sends what to whom, and so the order of addition. ``ring``: in chunks, 2(n - 1)/n of the bytes
            per rank. ``tree``: the order of an exact step; ``owner_computes`` and, for n = 2, 4, 8,
            ``halving_doubling`` have its bits. ``naive_ring``: the tutorials'; from 3 ranks on, ranks differ.
        transport: Another way between the ranks, for instance that of `run_ranks`.

    Returns:
        The same tensor.

    Raises:
        ConfigError: No such operator or algorithm, or no dense tensor, or the operator does not know its dtype.
        RankDivergence: The ranks have called something else, or with another shape or dtype.
        PlaceError: Inside a loss function, or where only one rank runs.
        PeerLost: A rank went away.

    Example:
        >>> all_reduce(torch.ones(2), op="mean", algorithm="ring")  # in a world of one
        tensor([1., 1.])
    """
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
        got = f"one with layout {tensor.layout}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ConfigError(f"expected a dense tensor, got {got}. Hint: one call a tensor; to_dense() of a sparse one.")
    for word, value, known in (("algorithm", algorithm, ALGORITHMS), ("op", op, OPERATORS)):
        if value not in known:
            raise ConfigError(f"expected {word} {', '.join(known)}; got {value!r}.{nearest(str(value), known)}")
    if not is_defined(OPERATORS[op], tensor.dtype):
        raise ConfigError(f"{op!r} is not defined for {str(tensor.dtype)[6:]}. Hint: tensor.float(), or another op.")
    carrier = transport or HERE.transport or _join(tensor.device)
    carrier.agree(f"all_reduce of {[*tensor.shape]} {str(tensor.dtype)[6:]}, {op} by {algorithm}")
    size, values = carrier.world_size, tensor.detach()
    if size > 1:
        flat = values.new_zeros(padded_length(values.numel(), size))
        flat[: values.numel()] = values.reshape(-1)
        reduce_flat(flat, algorithm, carrier, REDUCTIONS[OPERATORS[op]])
        values.copy_(flat[: values.numel()].view(values.shape))
    if op == "mean":
        divide(values, size)
    return tensor


def reduce_flat(flat: Tensor, algorithm: str, transport: Transport, combine: Combine = torch.add) -> None:
    """Combine the ranks' flat buffers, of a `padded_length`, in place, by one of `ALGORITHMS`; collective."""
    size, rank = transport.world_size, transport.rank
    if algorithm == "tree" and combine is torch.add:  # in fewer rounds
        leaves = [range(number, number + 1) for number in range(size)]
        tree_all_reduce([((rank, rank + 1), flat)], leaves, size, flat, transport)
    else:
        execute(plan(algorithm.replace("_", "-"), size), flat, transport, combine)


def _join(device: torch.device) -> Transport:
    """Return what joins the ranks of a program without a run."""
    from unisono.collectives.process_groups.transport import connect, device_of  # what a run has joined already

    if not _found:
        world = current_world()
        _found.append(connect(world, device=str(device_of(world, None if is_gpu(device) else "cpu"))))
    return _found[0]


def execute(schedule: Schedule, flat: Tensor, transport: Transport, combine: Combine = torch.add) -> None:
    """Run a schedule on this rank's buffer, in place; collective.

    Every round is one `Transport.all_to_all`.

    Args:
        schedule: For as many ranks as the transport joins; all ranks hold all chunks, as in an all-reduce.
        flat: One-dimensional and contiguous, of equal length on all ranks; the first chunks are an element longer
            where they do not divide it.
        transport: Joins the ranks.
        combine: What becomes of two values that meet.

    Raises:
        ConfigError: The schedule is for another number of ranks.
        PeerLost: A rank went away.
    """
    rank, world_size = transport.rank, transport.world_size
    if schedule.world_size != world_size:
        raise ConfigError(f"expected a schedule for {world_size} ranks, got one for {schedule.world_size}.")
    chunks = [flat[part.start : part.stop] for part in cut(len(flat), schedule.num_chunks)]
    forwards = any(move.action == "forward" for moves in schedule.rounds for move in moves)
    came = {chunk: value.clone() for chunk, value in enumerate(chunks)} if forwards else {}
    for moves in schedule.rounds:
        outgoing = sorted((move for move in moves if move.source == rank), key=lambda move: (move.target, move.chunk))
        incoming = sorted((move for move in moves if move.target == rank), key=lambda move: (move.source, move.chunk))
        parts = [(came if move.action == "forward" else chunks)[move.chunk] for move in outgoing]
        send = torch.cat(parts) if parts else flat.new_empty(0)
        recv = flat.new_empty(sum(len(chunks[move.chunk]) for move in incoming))
        send_splits = [sum(len(chunks[m.chunk]) for m in outgoing if m.target == other) for other in range(world_size)]
        recv_splits = [sum(len(chunks[m.chunk]) for m in incoming if m.source == other) for other in range(world_size)]
        transport.all_to_all(send, send_splits, recv, recv_splits)
        arrived = recv.split([len(chunks[move.chunk]) for move in incoming])
        _take(rank, chunks, came, list(zip(incoming, arrived, strict=True)), combine)


def _take(
    rank: int, chunks: list[Tensor], came: dict[int, Tensor], arrived: list[tuple[Move, Tensor]], combine: Combine
) -> None:
    for chunk in sorted({move.chunk for move, _ in arrived}):
        here = [(move, value) for move, value in arrived if move.chunk == chunk]
        actions = {move.action for move, _ in here}
        if actions == {"copy"}:
            chunks[chunk].copy_(here[0][1])
        elif actions == {"forward"}:
            came[chunk] = here[0][1]
            chunks[chunk].copy_(combine(chunks[chunk], came[chunk]))
        else:
            meeting = {rank: chunks[chunk], **{move.source: value for move, value in here}}
            chunks[chunk].copy_(add_up([meeting[other] for other in sorted(meeting)], combine))
