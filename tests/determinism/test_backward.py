"""One micro-batch's gradient without torch's detours: the same bits, and never where somebody would miss them."""

import logging

import pytest
import torch
from torch import nn
from torch.autograd import graph
from torch.overrides import TorchFunctionMode

from reference import bits
from unisono.determinism.backward import SHORTCUT, differentiate


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Open the short way, as a run does."""
    monkeypatch.setattr(SHORTCUT, "is_open", True)


def usual(loss, weight):
    loss.backward(torch.full_like(loss, weight))


def gradients(way, dtype, weight):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).to(dtype)
    way(model(torch.randn(9, 5, dtype=dtype)).square().mean(), weight)
    return [bits(parameter.grad) for parameter in model.parameters()]


@pytest.fixture
def called(monkeypatch):
    """Tell how often torch's own way was gone: it alone makes gradients to begin with."""
    calls, own = [], torch.autograd._make_grads

    def make(*args, **kwargs):
        calls.append(1)
        return own(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "_make_grads", make)
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("weight", [1.0, 0.5, 1 / 3, 17 / 1001, 1e-7])
def test_the_same_bits(called, dtype, weight):
    """Gradients are those of torch's `backward`, which is not called."""
    expected = gradients(usual, dtype, weight)
    assert len(called) == 1  # the control
    assert gradients(differentiate, dtype, weight) == expected
    assert len(called) == 1


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_a_tensor_of_another_kind(called, weight):
    """Its own `backward` is called; as it is when somebody has replaced torch's."""

    class Loss(torch.Tensor):
        pass

    leaf = torch.ones(3, requires_grad=True)
    differentiate(leaf.sum().as_subclass(Loss), weight)
    assert leaf.grad.tolist() == [weight] * 3
    assert called


def test_a_backward_of_somebody_else(monkeypatch):
    """Who replaces torch's is called."""
    seen = []
    monkeypatch.setattr(torch.Tensor, "backward", lambda self, *args: seen.append(args))
    differentiate(torch.ones(2, requires_grad=True).sum(), 1.0)
    differentiate(torch.ones(2, requires_grad=True).sum(), 0.5)
    assert [len(args) for args in seen] == [0, 1]


def test_who_stands_between_is_told(called, monkeypatch):
    """A mode that watches torch's functions, a transform of functions, a nested loss, another `autograd.backward`."""
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **kwargs or {})

    with Watch():
        differentiate(torch.ones(2, requires_grad=True).sum(), 0.5)
    assert torch.Tensor.backward in seen

    def inside(x):
        differentiate((x * weights).sum(), 1.0)
        return x

    weights = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="inside a functorch transform"):
        torch.func.vmap(inside)(torch.ones(3, 2))
    monkeypatch.setattr(torch.autograd, "backward", lambda *args, **kwargs: seen.append("other"))
    differentiate(torch.ones(2, requires_grad=True).sum(), 0.5)
    assert seen[-1] == "other"


def test_errors_are_those_of_torch():
    """A graph used twice, a loss that is not real."""
    loss = torch.ones(2, requires_grad=True).square().sum()
    differentiate(loss, 1.0)
    with pytest.raises(RuntimeError, match="second time"):
        differentiate(loss, 1.0)
    with pytest.raises(RuntimeError, match="real scalar"):
        differentiate(torch.ones(2, dtype=torch.complex64, requires_grad=True).sum(), 1.0)


def test_a_log_of_the_graph(monkeypatch, caplog):
    """Who asks torch for its log of backward passes gets it, as with torch's own way."""
    names = []
    monkeypatch.setattr(graph, "_register_logging_hooks_on_whole_graph", lambda outputs: names.append(outputs) or list)
    differentiate(torch.ones(2, requires_grad=True).sum(), 0.5)
    assert not names
    with caplog.at_level(logging.DEBUG, logger=graph.log.name):
        differentiate(torch.ones(2, requires_grad=True).sum(), 0.5)
    assert len(names) == 1


def test_outside_of_runs(called, monkeypatch):
    """Where no run has opened the short way, torch's own is gone."""
    monkeypatch.setattr(SHORTCUT, "is_open", False)
    differentiate(torch.ones(2, requires_grad=True).sum(), 0.5)
    assert called
