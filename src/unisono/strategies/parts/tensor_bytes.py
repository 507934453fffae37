"""Tensors as bytes, one after the other, and one rank's tensors brought to all ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from unisono.collectives.shm.operations import flat_of
from unisono.collectives.transport import Transport
from unisono.determinism.device_reads import brought
from unisono.determinism.devices import carried


def to_bytes(tensors: Sequence[Tensor]) -> Tensor:
    """Return the bytes of some tensors, one after the other, on the CPU; a GPU is waited for once."""
    return _joined([flat_of(tensor) for tensor in brought(tensors)])


def _joined(flats: Sequence[Tensor]) -> Tensor:
    """Return the bytes of flat tensors of one device."""
    return torch.cat([flat.view(torch.uint8) for flat in flats]) if flats else torch.empty(0).byte()


def from_bytes(body: Tensor, tensors: Sequence[Tensor]) -> None:
    """Overwrite tensors with what `to_bytes` has returned for others like them; nobody waits for a GPU."""
    pieces = body.split([tensor.nbytes for tensor in tensors]) if tensors else ()
    for tensor, piece in zip(tensors, pieces, strict=True):
        # One after another: a GPU holds one of them twice, not all. New memory begins where every dtype may.
        there = piece.clone() if piece.device == tensor.device else carried(piece, tensor.device)
        tensor.detach().copy_(there.view(tensor.dtype).view(tensor.shape))


def broadcast(tensors: Sequence[Tensor], transport: Transport, root: int = 0) -> None:
    """Overwrite tensors with those of the rank `root`, as one message for each device they lie on; collective."""
    if transport.world_size == 1:
        return
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        _broadcast([tensor for tensor in tensors if tensor.device == device], transport, root)


def _broadcast(tensors: Sequence[Tensor], transport: Transport, root: int) -> None:
    """Bring tensors of one device to all ranks; on a GPU nobody waits for them."""
    is_root, world_size = transport.rank == root, transport.world_size
    size = sum(tensor.nbytes for tensor in tensors)
    got = torch.empty(size, dtype=torch.uint8, device=tensors[0].device)
    sent = _joined([flat_of(tensor) for tensor in tensors]) if is_root else got[:0]
    recv_splits = [size if rank == root else 0 for rank in range(world_size)]
    transport.all_to_all(sent.repeat(world_size), [size if is_root else 0] * world_size, got, recv_splits)
    if not is_root:
        from_bytes(got, tensors)
