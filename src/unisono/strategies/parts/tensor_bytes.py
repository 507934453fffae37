"""Tensors as bytes, one after the other, and one rank's tensors brought to all ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from unisono.collectives.shm.board import as_bytes
from unisono.collectives.shm.operations import flat_of
from unisono.collectives.transport import Transport


def to_bytes(tensors: Sequence[Tensor]) -> Tensor:
    """Return the bytes of some tensors, one after the other, on the CPU."""
    return torch.cat([as_bytes(flat_of(tensor.cpu())) for tensor in tensors]) if tensors else torch.empty(0).byte()


def from_bytes(body: Tensor, tensors: Sequence[Tensor]) -> None:
    """Overwrite tensors with what `to_bytes` has returned for others like them."""
    for tensor, piece in zip(tensors, body.split([tensor.nbytes for tensor in tensors]), strict=True):
        tensor.detach().copy_(piece.clone().view(tensor.dtype).view(tensor.shape))


def broadcast(tensors: Sequence[Tensor], transport: Transport, root: int = 0) -> None:
    """Overwrite tensors with those of the rank `root`, as one message; collective."""
    if transport.world_size == 1 or not tensors:
        return
    is_root, world_size = transport.rank == root, transport.world_size
    size = sum(tensor.nbytes for tensor in tensors)
    sent = to_bytes(tensors if is_root else []).repeat(world_size)
    got = torch.empty(size, dtype=torch.uint8)
    recv_splits = [size if rank == root else 0 for rank in range(world_size)]
    transport.all_to_all(sent, [size if is_root else 0] * world_size, got, recv_splits)
    if not is_root:
        from_bytes(got, tensors)
