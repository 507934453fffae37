"""Cases about habits: what a user of PyTorch writes without thinking is refused, or computes what it says."""

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from adversary.found import Found, check, limited
from adversary.trainings import MODELS, OPTIMIZERS, draw, samples

Loss = Callable[[Any], Tensor]
Habit = Callable[[nn.Module, torch.optim.Optimizer, Loss, Any], Tensor]


def _backward(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, micro: Any) -> Tensor:
    value = loss(micro)
    value.backward()
    return value


def _backward_kept(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, micro: Any) -> Tensor:
    value = loss(micro)
    torch.autograd.backward(value, retain_graph=True)
    return value


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, micro: Any) -> Tensor:
    value = loss(micro)
    optimizer.step()
    return value


def _zero_grad(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, micro: Any) -> Tensor:
    optimizer.zero_grad()
    return loss(micro)


def _model_zero_grad(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, micro: Any) -> Tensor:
    model.zero_grad()
    return loss(micro)


def _scaled(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, micro: Any) -> Tensor:
    return torch.amp.GradScaler("cpu").scale(loss(micro))


def _detached(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, micro: Any) -> Tensor:
    return loss(micro).detach()


def _number(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, micro: Any) -> Tensor:
    return loss(micro).item()  # type: ignore[return-value]


def _per_sample(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, micro: Any) -> Tensor:
    return F.cross_entropy(model(micro.x), micro.y, reduction="none")


def _no_grad(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, micro: Any) -> Tensor:
    with torch.no_grad():
        return loss(micro)


def _another_model(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, micro: Any) -> Tensor:
    return F.cross_entropy(nn.Linear(6, 4).to(micro.x.dtype)(micro.x), micro.y)


HABITS: dict[str, Habit] = {
    "loss.backward()": _backward,
    "backward(retain_graph=True)": _backward_kept,
    "optimizer.step()": _step,
    "optimizer.zero_grad()": _zero_grad,
    "model.zero_grad()": _model_zero_grad,
    "GradScaler.scale(loss)": _scaled,
    "loss.detach()": _detached,
    "loss.item()": _number,
    "reduction='none'": _per_sample,
    "no_grad": _no_grad,
    "a loss of another model": _another_model,
}


def habit(chance: random.Random, *, cheat: bool = False) -> str:
    """A wrong habit, from a drawn step on, in any world: an error of ours in that very step, the weights as before."""
    name = chance.choice(sorted(HABITS))
    description = draw(chance) | {"model": chance.choice(["mlp", "conv", "double", "attentive"]), "epochs": 3}
    description |= {"batch_size": description["replicas"] + 6, "num_samples": 50}
    first = chance.randint(1, 3)
    world_size = min(chance.randint(1, 3), description["replicas"])

    def program(transport: Any) -> str:
        run = unisono.Run(seed=description["seed"], replicas=description["replicas"], transport=transport)
        model = MODELS[description["model"]]()
        model, optimizer = run.prepare(model, OPTIMIZERS[description["optimizer"]](model.parameters()))

        def right(micro: Any) -> Tensor:
            return F.cross_entropy(model(micro.x), micro.y)

        for batch in run.steps(run.loader(samples(description), batch_size=description["batch_size"]), epochs=3):
            before = run.fingerprint()
            try:
                is_right = cheat or batch.step < first
                run.step(batch, right if is_right else lambda micro: HABITS[name](model, optimizer, right, micro))
            except unisono.UnisonoError as error:
                check(batch.step == first, f"{name} was refused in step {batch.step}, not {first}")
                check(run.fingerprint() == before, f"{name}: refused, but the weights have changed")
                return str(error)
            check(batch.step < first, f"{name} in step {first} on {world_size} ranks is accepted: {description}")
        raise Found(f"{name}: the run ended")

    with warnings.catch_warnings(), limited(60, name):
        warnings.simplefilter("ignore")
        told = unisono.run_ranks(program, world_size)
    return f"{name}: {told[0].splitlines()[0][:100]}"
