"""Schedules for real: the moves of `schedules`, carried by a transport; the bits are those of `simulate`."""

import torch
from torch import Tensor

from unisono.collectives.placement import cut
from unisono.collectives.schedules import Move, Schedule
from unisono.collectives.transport import Transport
from unisono.collectives.tree import add_up
from unisono.errors import ConfigError


def execute(schedule: Schedule, flat: Tensor, transport: Transport) -> None:
    """Run a schedule on this rank's buffer, in place; collective.

    Every round is one `Transport.all_to_all`.

    Args:
        schedule: For as many ranks as the transport joins; all ranks hold all chunks, as in an all-reduce.
        flat: One-dimensional and contiguous, of equal length on all ranks; the first chunks are an element longer
            where they do not divide it.
        transport: Joins the ranks.

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
        _take(rank, chunks, came, list(zip(incoming, arrived, strict=True)))


def _take(rank: int, chunks: list[Tensor], came: dict[int, Tensor], arrived: list[tuple[Move, Tensor]]) -> None:
    for chunk in sorted({move.chunk for move, _ in arrived}):
        here = [(move, value) for move, value in arrived if move.chunk == chunk]
        actions = {move.action for move, _ in here}
        if actions == {"copy"}:
            chunks[chunk].copy_(here[0][1])
        elif actions == {"forward"}:
            came[chunk] = here[0][1]
            chunks[chunk].add_(came[chunk])
        else:
            meeting = {rank: chunks[chunk], **{move.source: value for move, value in here}}
            chunks[chunk].copy_(add_up([meeting[other] for other in sorted(meeting)], torch.add))
