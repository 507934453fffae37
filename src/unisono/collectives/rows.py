"""Rows of tensors from all ranks, in rank order, as one message: each rank brings as many as it has."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unisono.collectives.transport import Transport

_FLAG_BYTES = 8


class RowKind(NamedTuple):
    """What the rows of one tensor are."""

    dtype: str  #: Of torch, by its name.
    shape: Sequence[int]  #: Of a row.
    device: torch.device  #: Where they are wanted.

    def empty(self, rows: int) -> Tensor:
        """Return memory for so many rows."""
        return torch.empty(rows, *self.shape, dtype=getattr(torch, self.dtype), device=self.device)


def gather_rows(
    own: Sequence[Tensor],
    kinds: Sequence[RowKind],
    counts: Sequence[int],
    transport: Transport,
    *,
    is_flagged: bool = False,
) -> list[Tensor] | None:
    """Return the rows of all ranks, as tensors of their own, bit for bit; collective.

    Ranks with fewer rows send as many bytes as the one with most.

    Args:
        own: This rank's rows, one tensor for each kind; contiguous. Not looked at where it `is_flagged`.
        kinds: The same on all ranks.
        counts: Rows of each rank.
        transport: Joins the ranks.
        is_flagged: Whether this rank has no such rows to send.

    Returns:
        One tensor for each kind; None, on all ranks, where some rank is flagged.
    """
    found = [kind.empty(sum(counts)) for kind in kinds]
    widths, most = [tensor.nbytes // max(1, len(tensor)) for tensor in found], max(counts)
    begins = [_FLAG_BYTES + most * sum(widths[:index]) for index in range(len(widths) + 1)]
    device = next((tensor.device for tensor in found if not tensor.is_cpu), torch.device("cpu"))
    message = torch.zeros(begins[-1], dtype=torch.uint8, device=device)
    if message.is_cpu:
        message[0] = is_flagged
    for tensor, begin in zip([] if is_flagged else own, begins, strict=False):
        message[begin : begin + tensor.nbytes] = bytes_of(tensor)
    every = message.new_empty(len(counts), len(message))
    transport.all_gather(message, every.view(-1))
    flags = every[:, 0] if message.is_cpu else _told(transport, is_flagged)
    if flags.any():
        return None
    for tensor, width, begin in zip(found, widths, begins, strict=False):
        parts = bytes_of(tensor).split([count * width for count in counts])
        for part, told in zip(parts, every, strict=True):
            part.copy_(told[begin : begin + len(part)])
    return found


def _told(transport: Transport, is_flagged: bool) -> Tensor:
    """Return what every rank says, on the CPU: nobody waits for a GPU."""
    flags = torch.empty(transport.world_size, dtype=torch.uint8)
    transport.all_gather(torch.tensor([is_flagged], dtype=torch.uint8), flags)
    return flags


def bytes_of(tensor: Tensor) -> Tensor:
    """Return a tensor's bytes, flat: a view of them, where it is contiguous."""
    return tensor.contiguous().view(-1).view(torch.uint8)
