"""Nested tensors of all ranks together: gathered, added, padded to one shape; what is no tensor goes as JSON."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unisono.collectives.rows import RowKind, gather_rows
from unisono.collectives.transport import Transport
from unisono.data.batches import changed
from unisono.errors import ConfigError, RankDivergence


def apply(function: Callable[[Tensor], Any], data: Any) -> Any:
    """Return `data` with `function` of every tensor in it (in tuples, lists, dictionaries)."""
    if isinstance(data, Tensor):
        return function(data)
    if (made := changed(data, functools.partial(apply, function))) is data:
        raise ConfigError(f"expected tensors, in tuples, lists or dictionaries, got {type(data).__name__}.")
    return made


def is_of_tensors(data: Any) -> bool:
    """Whether there is nothing but tensors, in tuples, lists and dictionaries."""
    if isinstance(data, list | tuple | dict):
        return all(map(is_of_tensors, data.values() if isinstance(data, dict) else data))
    return isinstance(data, Tensor)


def rows_of_all(tensor: Tensor, transport: Transport) -> list[Tensor]:
    """Return every rank's tensor, in rank order, on this one's device; a number becomes a row; collective."""
    own = tensor.detach().reshape(1) if tensor.ndim == 0 else tensor.detach()
    told = transport.all_gather_json([str(own.dtype), [*own.shape[1:]], len(own)])
    for rank, (dtype, shape, _) in enumerate(told):
        if [dtype, shape] != told[0][:2]:
            raise RankDivergence(
                f"expected tensors alike but for the number of rows, got {told[0][0][6:]} with rows of {told[0][1]} on "
                f"rank 0, {dtype[6:]} with rows of {shape} on rank {rank}. Hint: pad_across_processes(tensor, dim=1)."
            )
    kind, counts = RowKind(str(own.dtype)[6:], own.shape[1:], torch.device("cpu")), [rows for _, _, rows in told]
    [everyone] = gather_rows([own.cpu()], [kind], counts, transport) or []
    return [*everyone.to(own.device).split(counts)]


def gather(data: Any, transport: Transport) -> Any:
    """Return every tensor in `data` with the rows of all ranks, in rank order; collective."""
    return apply(lambda tensor: torch.cat(rows_of_all(tensor, transport)), data)


def gather_objects(data: Any, transport: Transport, *, counts: bool = True) -> list[Any]:
    """Return the items of the lists, or the values where they are no lists, of the ranks that count; collective."""
    try:
        told = [value for is_counted, value in transport.all_gather_json([counts, data]) if is_counted]
    except TypeError as error:
        raise ConfigError(
            f"expected tensors, or what JSON knows (texts, numbers, lists, dictionaries): {error}. Hint: turn it into "
            "tensors or texts first; nothing is pickled between ranks."
        ) from error
    return [item for each in told for item in each] if isinstance(data, list | tuple) else told


def reduce(data: Any, transport: Transport, how: str) -> Any:
    """Return every tensor in `data` added up over the ranks, in rank order; ``mean`` divides by their number."""
    if how not in ("sum", "mean", "none"):
        raise ConfigError(f"expected reduction 'sum', 'mean' or 'none', got {how!r}.")

    def total(tensor: Tensor) -> Tensor:
        parts = [part[0] for part in rows_of_all(tensor.reshape(1, *tensor.shape), transport)]
        summed = functools.reduce(torch.add, parts)
        return summed / len(parts) if how == "mean" else summed

    return data if how == "none" else apply(total, data)


def pad(data: Any, transport: Transport, *, dim: int, index: float, first: bool) -> Any:
    """Return every tensor in `data` as long along `dim` as the longest of all ranks; collective."""

    def padded(tensor: Tensor) -> Tensor:
        sizes = transport.all_gather_json(tensor.shape[dim] if -tensor.ndim <= dim < tensor.ndim else 0)
        if max(sizes) == sizes[transport.rank]:
            return tensor
        shape = [*tensor.shape]
        shape[dim] = max(sizes)
        start = shape[dim] - tensor.shape[dim] if first else 0
        whole = tensor.new_full(shape, index)
        whole.narrow(dim, start, tensor.shape[dim]).copy_(tensor)
        return whole

    return apply(padded, data)
