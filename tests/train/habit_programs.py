"""Habits inside the loss function on real processes, where torch.distributed carries what they would exchange."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from ranks import join
from strategies.conformance import mlp
from strategies.strategy_runs import toy_data
from unisono.collectives.transport import Transport


def meeting(model: nn.Module) -> Callable[[Any], Tensor]:
    """Return a loss over what all ranks have gathered."""

    def loss(micro: Any) -> Tensor:
        out = model(micro.x)
        dist.all_gather_object([None] * dist.get_world_size(), 1)
        dist.all_reduce(out.detach().clone())
        return F.cross_entropy(out, micro.y)

    return loss


def of_a_copy(model: nn.Module) -> Callable[[Any], Tensor]:
    """Return the loss of another instance."""
    other = mlp()
    return lambda micro: F.cross_entropy(other(micro.x), micro.y)


class Half(nn.Module):
    """Has a part that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        scores: Tensor = self.used(x)
        return scores


def usual(model: nn.Module) -> Callable[[Any], Tensor]:
    """Return the usual loss."""
    return lambda micro: F.cross_entropy(model(micro.x), micro.y)


CASES: dict[str, tuple[str, int | None, Callable[[], nn.Module], Any, str]] = {
    "exact meets": ("exact", 4, mlp, meeting, "PlaceError: step 1: torch.distributed's all_gather_object was called"),
    "fsdp meets": ("fsdp", 4, mlp, meeting, "PlaceError: step 1: torch.distributed's all_gather_object was called"),
    "ddp meets": ("ddp", 3, mlp, meeting, ""),
    "ddp meets unevenly": ("ddp", 4, mlp, meeting, "the ranks call it 2, 1, 1 times, so some would wait for ever"),
    "exact of a copy": ("exact", 4, mlp, of_a_copy, "StepError: step 1: no trainable parameter"),
    "fsdp of a copy": ("fsdp", 4, mlp, of_a_copy, "StepError: step 1: no trainable parameter"),
    "ddp of a copy": ("ddp", 3, mlp, of_a_copy, "StepError: step 1: the loss was computed without a call of the model"),
    "ddp unused": ("ddp", 3, Half, usual, "DDP waited for them: 'unused.weight', 'unused.bias' (2 of 4)"),
}
"""Strategy, replicas, model, loss, and what every rank is told; nothing where it is right."""


def play(transport: Transport | None) -> dict[str, str]:
    """Return what this rank is told, by case."""
    joined = join(transport)
    told = {}
    for name, (strategy, replicas, build, make, _) in CASES.items():
        run = unisono.Run(seed=0, replicas=replicas, strategy=strategy, transport=transport or "auto")
        model = build()
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        before = copy.deepcopy([parameter.detach() for parameter in model.parameters()]) if strategy != "fsdp" else []
        try:
            for batch in run.steps(run.loader(toy_data(48), batch_size=12), epochs=1):
                run.step(batch, make(front))
            told[name] = ""
        except unisono.UnisonoError as error:
            told[name] = f"{type(error).__name__}: {error}"
            if not all(map(torch.equal, before, model.parameters())):
                told[name] += " BUT WEIGHTS HAVE CHANGED"
        joined.barrier()
    return told
