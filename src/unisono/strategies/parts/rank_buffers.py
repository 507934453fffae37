"""Buffers (batch statistics) where every rank has its own: rank 0's are the run's, as in DDP."""

from typing import final

import torch
from torch import nn

from unisono.collectives.shm.board import as_bytes
from unisono.collectives.shm.operations import flat_of
from unisono.collectives.transport import Transport


def broadcast_bytes(values: list[torch.Tensor], transport: Transport, root: int = 0) -> None:
    """Overwrite tensors with those of the rank `root`, as one message; collective."""
    if transport.world_size == 1 or not values:
        return
    flats = [as_bytes(flat_of(value)).cpu() for value in values]
    whole = torch.cat(flats)
    is_root, world_size = transport.rank == root, transport.world_size
    sent = whole.repeat(world_size) if is_root else whole.new_empty(0)
    got = torch.empty_like(whole)
    recv_splits = [len(whole) if rank == root else 0 for rank in range(world_size)]
    transport.all_to_all(sent, [len(whole) if is_root else 0] * world_size, got, recv_splits)
    if is_root:
        return
    for value, piece in zip(values, got.split([len(flat) for flat in flats]), strict=True):
        value.detach().copy_(piece.clone().view(value.dtype).view(value.shape))


@final
class RankBuffers:
    """The buffers of a model, brought from rank 0 to all ranks."""

    def __init__(self, model: nn.Module, transport: Transport) -> None:
        self._model, self._transport = model, transport

    def sync(self, root: int = 0) -> None:
        """Overwrite every rank's buffers with those of the rank `root`; collective."""
        broadcast_bytes([buffer for _, buffer in self._model.named_buffers()], self._transport, root)
