"""Optimizer state that is spread over the ranks, brought to all of them before it is saved."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.collectives.transport import Transport
from unisono.strategies.parts.rank_buffers import broadcast_bytes


def share_optimizer_state(optimizer: Optimizer, owners: Mapping[nn.Parameter, int], transport: Transport) -> None:
    """Give every rank the optimizer state of every parameter; collective.

    Args:
        optimizer: Equal groups on all ranks.
        owners: The rank that holds the state of each parameter.
        transport: Joins the ranks.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    mine = {
        str(index): {key: _described(value) for key, value in optimizer.state[parameter].items()}
        for index, parameter in enumerate(parameters)
        if owners[parameter] == transport.rank and parameter in optimizer.state
    }
    for root, told in enumerate(transport.all_gather_json(mine)):
        tensors: list[Tensor] = []
        for index, entries in told.items():
            parameter = parameters[int(index)]
            state = optimizer.state[parameter]
            for key, (kind, content, shape, on_device) in entries.items():
                if kind == "value":
                    state[key] = content
                    continue
                if root != transport.rank:
                    device = parameter.device if on_device else torch.device("cpu")
                    state[key] = torch.empty(shape, dtype=getattr(torch, content), device=device)
                tensors.append(state[key])
        broadcast_bytes(tensors, transport, root)


def _described(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), value.device.type != "cpu"]
    return ["value", value, None, None]
