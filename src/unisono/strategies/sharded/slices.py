"""Tensors of which each rank has a slice of rows, as torch's FSDP2 cuts them."""

from torch import Tensor
from torch.distributed.tensor import DTensor

from unisono.collectives.transport import Transport


def local_of(tensor: Tensor) -> Tensor:
    """Return this rank's slice; a plain tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_of(tensor: Tensor, transport: Transport) -> Tensor:
    """Return a sliced tensor in one piece, a plain one as it is; collective."""
    if not isinstance(tensor, DTensor):
        return tensor
    local, world_size = tensor.to_local().detach(), transport.world_size
    if world_size == 1:
        return local
    rows = -(-tensor.shape[0] // world_size)  # the last slices may be shorter, or empty
    mine = local.new_zeros((rows, *tensor.shape[1:]))
    mine[: len(local)] = local
    everything = local.new_empty(world_size * mine.numel())
    transport.all_gather(mine.view(-1), everything)
    return everything.view(world_size * rows, *tensor.shape[1:])[: tensor.shape[0]]


def sliced_like(whole: Tensor, like: Tensor | None, transport: Transport) -> Tensor:
    """Return this rank's slice of a whole tensor, cut as `like` is; a tensor that fits no slices stays whole."""
    if not isinstance(like, DTensor) or whole.shape != like.shape:
        return whole
    parts = whole.to(like.device).chunk(transport.world_size)
    rank = transport.rank
    part = parts[rank].clone() if rank < len(parts) else whole.new_empty((0, *whole.shape[1:]), device=like.device)
    return DTensor.from_local(part, like.device_mesh, like.placements, shape=whole.shape, stride=whole.stride())
