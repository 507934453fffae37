"""Which models are rows of layers, and where they are cut."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from unisono.errors import ConfigError
from unisono.recipes.digits import DigitsCNN
from unisono.recipes.mnist import SimpleCNN
from unisono.strategies.pipelines.layers import costs_of, cut_layers, layers_of


class Row(nn.Module):
    """Calls its children one by one; one of them never."""

    def __init__(self):
        super().__init__()
        self.second, self.first, self.idle, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.act(self.second(self.act(self.first(x))))


class Residual(Row):
    def forward(self, x):
        return x + self.first(x)


class Branch(Row):
    def forward(self, x):
        first = self.first(x)
        self.second(x)
        return first


class Twice(Row):
    def forward(self, x):
        return self.first(self.first(x))


class Looks(Row):
    def forward(self, x):
        return self.first(x) if x.sum() > 0 else self.second(x)


class Stateful(nn.Linear):
    def get_extra_state(self):
        return {}


def hooked():
    """Return a model with a hook of its own."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.register_forward_hook(lambda *_: None)
    return model


def patched():
    """Return a model whose instance has another forward pass."""
    model = Row()
    model.forward = lambda x: x
    return model


def test_layers_come_in_the_order_of_calls_with_sequentials_taken_apart():
    """By their names in the model; children that nobody calls are in no layer."""
    assert list(layers_of(Row())) == ["first", "act", "second", "act#3"]
    nested = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(2, 2)), nn.Sequential()))
    assert list(layers_of(nested)) == ["0", "1.0", "1.1.0", "1.2"]
    assert list(layers_of(DigitsCNN())) == [f"features.{i}" for i in range(8)] + [f"classify.{i}" for i in range(3)]


@pytest.mark.parametrize(("build", "message"), [
    (Residual, r"does more than handing on: add \(call_function of add\).*nn.Sequential"),
    (Branch, "the layer 'second' gets something else than what the one before it returns"),
    (Twice, "one layer with weights twice"),
    (Looks, "cannot be taken for a row of layers"),
    (hooked, "has hooks"),
    (patched, "a forward.. of its own instance"),
    (SimpleCNN, "more than handing on: conv1_weight"),
    (lambda: nn.Sequential(Stateful(2, 2)), "0 .Stateful. keeps extra state"),
])  # fmt: skip
def test_other_models_are_refused(build, message):
    """Before the start, with what stands in the way."""
    with pytest.raises(ConfigError, match=message):
        layers_of(build())


def test_a_part_with_hooks_stays_in_one_piece():
    """Its hooks are run."""
    model = nn.Sequential(nn.Linear(4, 4), hooked())
    assert list(layers_of(model)) == ["0", "1"]


NAMES = ["conv1", "features.0", "features.1", "fc"]


@pytest.mark.parametrize(("costs", "stages", "cuts", "expected"), [
    ([5, 1, 1, 5], 2, None, [2, 2]),
    ([1, 1, 1, 9], 3, None, [1, 2, 1]),
    ([9, 9, 9, 9], 2, ["features"], [1, 3]),
    ([9, 9, 9, 9], 3, ["features.1", "fc"], [2, 1, 1]),
])  # fmt: skip
def test_cuts_by_cost_and_by_hand(costs, stages, cuts, expected):
    """The dearest stage is as cheap as it can be; by hand a stage begins where it is told to."""
    parts = cut_layers(NAMES, costs, stages, cuts)
    assert [len(part) for part in parts] in ([expected, expected[::-1]] if cuts is None else [expected])
    assert [index for part in parts for index in part] == [0, 1, 2, 3]


@pytest.mark.parametrize(("stages", "cuts", "message"), [
    (5, None, "at most 4 stages for a model of 4 layers, got 5.*Hint: --stages 4.*conv1, features.0"),
    (2, ["feature"], "expected cuts at layers: conv1, .*got 'feature'"),
    (3, ["fc"], "expected 2 cuts for 3 stages"),
    (3, ["fc", "features"], "each after the one before"),
    (2, ["conv1"], "none at the first layer 'conv1'"),
])  # fmt: skip
def test_wrong_cuts_are_refused(stages, cuts, message):
    """With the layers that there are."""
    with pytest.raises(ConfigError, match=message):
        cut_layers(NAMES, [1, 1, 1, 1], stages, cuts)


def test_layers_cost_their_parameters():
    """And those without still a little, so that they are shared out."""
    assert costs_of(layers_of(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))) == [9, 1]
    model = Row()
    x = torch.randn(3, 4)
    value = x
    for layer in layers_of(model).values():
        value = layer(value)
    assert torch.equal(value, model(x)) and not torch.equal(value, F.relu(model.first(x)))
