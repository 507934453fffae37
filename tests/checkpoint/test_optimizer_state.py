"""Optimizers of other libraries keep odd state: all of it comes back, to the bit, or is refused by name."""

import pytest
import torch

from checkpoint.test_format import Net, through_the_disk, train
from unisono.checkpoint.format import fingerprint, pack, unpack
from unisono.errors import CheckpointError


class Kept(torch.optim.Optimizer):
    """Descends along what `self.smooth` makes of a gradient and the state of its parameter."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(self.smooth(parameter.grad, self.state[parameter]).to(parameter.dtype), alpha=0.1)


class InLists(Kept):
    """Two moments of another dtype in one list, as optimizers by blocks keep them."""

    def smooth(self, grad, state):
        moments = state.setdefault("moments", [grad.double() / 3, {"second": (grad.double() / 7,)}])
        moments[0].mul_(0.9).add_(grad / 3)
        moments[1]["second"][0].lerp_(grad.double(), 0.37)
        return moments[0] + moments[1]["second"][0]


class UnderOddKeys(Kept):
    """Tensors whose keys are numbers or have a slash, and a text."""

    def smooth(self, grad, state):
        for key in (0, "ema/fast"):
            state.setdefault(key, torch.zeros_like(grad)).lerp_(grad, 0.3)
        return state[0] + state["ema/fast"] if state.setdefault("kind", "both") == "both" else grad


class LaidOut(Kept):
    """Eigenvectors, which lie in memory column by column, as in Shampoo and SOAP."""

    def smooth(self, grad, state):
        if grad.dim() != 2:
            return grad
        if "bases" not in state:
            state["bases"] = [torch.linalg.eigh(each.cov() + torch.eye(len(each)))[1] for each in (grad, grad.T)]
        left, right = state["bases"]
        assert not left.is_contiguous()  # the control
        state.setdefault("orders", (left.stride(), right.stride()))
        assert (left.stride(), right.stride()) == state["orders"]
        return left @ (left.T @ grad @ right).tanh() @ right.T


class ForAll(Kept):
    """A counter that belongs to no parameter."""

    def step(self, closure=None):
        self.state["steps"] = self.state.get("steps", 0) + 1
        super().step()

    def smooth(self, grad, state):
        return grad / (1 + self.state["steps"])


class Lookahead(Kept):
    """Slow weights beside torch's state, in the optimizer's own ``state_dict``."""

    def __init__(self, parameters):
        super().__init__(parameters)
        self.steps, self.slow = 0, None

    def smooth(self, grad, state):
        return grad

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        weights = self.param_groups[0]["params"]
        self.steps, self.slow = self.steps + 1, self.slow or [each.clone() for each in weights]
        if self.steps % 3 == 0:
            torch._foreach_lerp_(self.slow, weights, 0.5)
            torch._foreach_copy_(weights, self.slow)

    def state_dict(self):
        return super().state_dict() | {"slow": self.slow, "steps": self.steps}

    def load_state_dict(self, state_dict):
        super().load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
        self.slow, self.steps = state_dict["slow"], state_dict["steps"]


def built(kind, seed):
    torch.manual_seed(seed)
    model = Net()
    return model, kind(model.parameters()), None


@pytest.mark.parametrize("kind", [InLists, UnderOddKeys, LaidOut, ForAll, Lookahead])
def test_odd_state_comes_back(kind):
    """A run that is resumed in the middle ends with the weights of one that was not; without the state it does not."""
    whole = built(kind, 0)
    train(*whole, range(4))
    state = through_the_disk(pack(*whole, {}))
    train(*whole, range(4, 8))
    resumed = built(kind, 1)
    unpack(state, *resumed)
    train(*resumed, range(4, 8))
    assert fingerprint(resumed[0]) == fingerprint(whole[0])
    left, right = pack(*whole, {}), pack(*resumed, {})
    assert left.values == right.values
    assert {name: part.keys() for name, part in left.tensors.items()} == {
        name: part.keys() for name, part in right.tensors.items()
    }
    forgetful = built(kind, 0)
    unpack(state, *forgetful)
    forgetful = (forgetful[0], kind(forgetful[0].parameters()), None)
    train(*forgetful, range(4, 8))
    assert fingerprint(forgetful[0]) != fingerprint(whole[0])


def test_what_is_loaded_is_not_the_checkpoint_s():
    """A state may be put into several models: what one of them trains with is its own."""
    model, optimizer, _ = built(InLists, 0)
    train(model, optimizer, None, range(2))
    state = through_the_disk(pack(model, optimizer, None, {}))
    before = {name: tensor.clone() for name, tensor in state.tensors["objects"].items()}
    unpack(state, model, optimizer, None)
    train(model, optimizer, None, range(2, 4))
    assert before
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors["objects"].items())


def test_state_that_is_no_dictionary():
    """It is named, with its parameter."""
    model, optimizer, _ = built(Kept, 0)
    optimizer.state[model.last.weight] = [1]
    with pytest.raises(CheckpointError, match=r"state of 'last\.weight': expected a dictionary, got list"):
        pack(model, optimizer, None, {})
