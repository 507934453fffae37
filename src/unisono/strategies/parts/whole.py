"""State of which every rank holds some tensors, brought to all ranks before it is saved or hashed."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unisono.checkpoint.format import State
from unisono.collectives.transport import Transport
from unisono.strategies.parts.rank_buffers import broadcast_bytes

Tensors = dict[str, dict[str, Tensor]]


def gather(own: Tensors, transport: Transport) -> Tensors:
    """Return every rank's tensors on every rank, on the CPU; collective.

    Args:
        own: By file stem and name; what several ranks have is taken from the lowest one.
        transport: Joins the ranks.
    """
    # In name order: after a resume each rank's dictionaries have an order of their own.
    mine = {stem: dict(sorted(part.items())) for stem, part in own.items()}
    described = {
        stem: {name: [str(tensor.dtype)[6:], list(tensor.shape)] for name, tensor in part.items()}
        for stem, part in mine.items()
    }
    whole: Tensors = {stem: {} for stem in own}
    for root, told in enumerate(transport.all_gather_json(described)):
        values: list[Tensor] = []
        for stem, part in told.items():
            for name, (dtype, shape) in part.items():
                if name in whole[stem]:
                    continue
                if root == transport.rank:
                    values.append(mine[stem][name].detach().cpu().contiguous().clone())
                else:
                    values.append(torch.empty(shape, dtype=getattr(torch, dtype)))
                whole[stem][name] = values[-1]
        broadcast_bytes(values, transport, root)
    return whole


def merge_notes(state: State, is_own: Callable[[str], bool], transport: Transport) -> dict[str, Any]:
    """Return what the optimizer keeps of each parameter beside tensors, of all ranks; collective.

    Args:
        state: As this rank packs it.
        is_own: Whether this rank answers for a parameter (a name, or a name and an entry: ``fc.weight/exp_avg``).
        transport: Joins the ranks.
    """
    notes = {
        kind: {name: value for name, value in state.values["optimizer"][kind].items() if is_own(name)}
        for kind in ("scalars", "strides")
    }
    merged: dict[str, Any] = {kind: {} for kind in notes}
    for told in transport.all_gather_json(notes):
        for kind, entries in told.items():
            merged[kind] |= entries
    return merged


def with_whole(state: State, tensors: Tensors, notes: Mapping[str, Any]) -> State:
    """Return a state with the tensors and notes of all ranks in place of this rank's."""
    values = {**state.values, "optimizer": {**state.values["optimizer"], **notes}}
    return replace(state, tensors={**state.tensors, **tensors}, values=values)
