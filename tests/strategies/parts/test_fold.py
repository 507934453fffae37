"""Large gradients are added as they arrive: the same bits, less memory, and no gradient that is added too early."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ranks import run_threads
from reference import bits
from unisono.collectives.loopback import LoopbackTransport
from unisono.collectives.placement import place_evenly
from unisono.errors import StepError
from unisono.strategies.base import Micro, StrategyContext
from unisono.strategies.exact import Exact
from unisono.strategies.objective import Objective
from unisono.strategies.options import ExactOptions

WIDTH, LAYERS, REPLICAS = 512, 4, 5  # a layer's weight is 1 MiB


class Stack(nn.Module):
    """Large layers, with a small one; the first layer's gradients arrive last."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.held = []

    def forward(self, x):
        x.requires_grad_().register_hook(self._note)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return (x * self.gain).square().mean()

    def _note(self, _):
        self.held.append(sum(layer.weight.grad is not None for layer in self.layers))


class Twice(nn.Module):
    """A layer whose gradient arrives twice in a pass where `is_twice` says so: each checkpoint is a pass of its own."""

    def __init__(self, is_twice):
        super().__init__()
        torch.manual_seed(7)
        self.layer, self.is_twice = nn.Linear(WIDTH, WIDTH), is_twice

    def forward(self, x):
        x = x.requires_grad_()
        for _ in range(2):
            once = (
                checkpoint(self.layer, x, use_reentrant=True) if self.is_twice(int(x.flatten()[0])) else self.layer(x)
            )
            x = x + once * once  # the sum of both parts is no exact one
        return x.square().mean()


def strategy_of(model, transport, overlap="auto"):
    context = StrategyContext(
        transport=transport,
        placement=place_evenly(REPLICAS, transport.world_size),
        seed=3,
        device=torch.device("cpu"),
    )
    return Exact(model, torch.optim.SGD(model.parameters(), lr=0.1), context, ExactOptions(overlap=overlap))


def train(model, transport, overlap="auto", steps=2, data=None):
    """Do steps; return fingerprints and bad replicas of each, and the last gradients' bits."""
    strategy, found = strategy_of(model, transport, overlap), []
    hosted = strategy.placement[transport.rank]
    for step in range(1, steps + 1):
        micros = [Micro(replica=replica, num_samples=1, data=(data or sample)(step, replica)) for replica in hosted]
        gradients = strategy.compute_gradients(step, micros, REPLICAS, Objective(model))
        found.append((gradients.checksum, gradients.loss.hex(), list(gradients.bad_replicas)))
        strategy.optimizer.step()
    grads = [None if parameter.grad is None else bits(parameter.grad).hex() for parameter in model.parameters()]
    strategy.close()
    return found, grads


def sample(step, replica):
    draw = torch.Generator().manual_seed(10 * step + replica)
    x = torch.randn(2, WIDTH, generator=draw)
    x[0, 0] = replica
    return x


def test_the_same_bits_as_all_at_once():
    """One rank and three: gradients, also none at all, are those that were taken after the pass."""

    def program(transport, overlap):
        return train(Stack(), transport, overlap)

    (expected,) = run_threads(program, 1, "off")
    assert expected[1].count(None) == 2  # of the layer that is not used
    assert [*run_threads(program, 1, "auto"), *run_threads(program, 3, "auto")] == [expected] * 4


@pytest.mark.parametrize(("overlap", "later"), [("auto", 0), ("off", LAYERS - 1)])
def test_gradients_are_not_held(overlap, later):
    """When the first layer's gradient is computed all the others are added and gone; the first replica is watched."""
    model = Stack()
    train(model, LoopbackTransport(), overlap)
    assert model.held == [LAYERS - 1] + [later] * (2 * REPLICAS - 1)


def test_a_gradient_in_two_parts_is_added_whole():
    """Where it is so from the first replica on nothing is taken early; adding part by part would be other bits."""
    always, taken = train(Twice(lambda _: True), LoopbackTransport()), []
    assert always == train(Twice(lambda _: True), LoopbackTransport(), "off")

    def note(parameter):  # what adding each part as it comes would give
        taken.append(parameter.grad.clone())
        parameter.grad = None

    model = Twice(lambda _: True)
    model.layer.weight.register_post_accumulate_grad_hook(note)
    for replica in range(2):
        (model(sample(1, replica)) / 5).backward()
    one, two, three, four = taken
    assert bits((one + two) + (three + four)) != bits(((one + two) + three) + four)


def test_a_second_part_that_comes_as_a_surprise_is_refused():
    """In a later replica for the first time: the step ends, and the way out works."""
    with pytest.raises(StepError, match=r"'layer.weight' arrived again .* Hint: overlap='off'"):
        train(Twice(lambda replica: replica == 3), LoopbackTransport())
    train(Twice(lambda replica: replica == 3), LoopbackTransport(), "off")


def test_a_hook_that_writes_is_waited_for():
    """A program's own hook shrinks a gradient after ours has seen it, through `.data`: what is left is added."""

    def shrink(parameter):
        parameter.grad.data.mul_(0.3)

    def run(overlap):
        model = Stack()
        strategy_of(model, LoopbackTransport()).close()  # leaves no hook behind
        assert not model.layers[0].weight._post_accumulate_grad_hooks
        strategy = strategy_of(model, LoopbackTransport(), overlap)
        strategy._sum.start_step(REPLICAS)  # lays out: hooks of its own come first
        model.layers[0].weight.register_post_accumulate_grad_hook(shrink)
        micros = [Micro(replica=replica, num_samples=1, data=sample(1, replica)) for replica in range(REPLICAS)]
        found = strategy.compute_gradients(1, micros, REPLICAS, Objective(model)).checksum
        strategy.close()
        return found

    assert run("auto") == run("off") != train(Stack(), LoopbackTransport(), steps=1)[0][0][0]


def test_who_was_not_finite_is_known():
    """NaN in the large gradients of one replica, or of a kept one and the one added to it, names these."""
    for bad in ([1], [2], [2, 3], [4]):
        broken = lambda step, replica, bad=bad: sample(step, replica) * (float("nan") if replica in bad else 1)  # noqa: E731
        for overlap in ("auto", "off"):
            steps, _ = train(Stack(), LoopbackTransport(), overlap, data=broken, steps=1)
            assert steps[0][2] == bad


@pytest.mark.parametrize("name", ["gain", "layers.0.bias", "layers.3.bias", "layers.1.weight"])
@pytest.mark.parametrize("overlap", ["auto", "off"])
def test_one_number_that_is_not_finite_is_enough(name, overlap):
    """In one parameter of one replica, large or small, kept or added to its neighbour; without it nobody is named."""
    for bad in ([], [1], [2], [2, 3], [4]):
        model, turn = Stack(), iter(range(REPLICAS))

        def spoil(grad, bad=bad, turn=turn):
            spoilt = grad.clone()
            spoilt.view(-1)[-1] = float("inf") if next(turn) in bad else 0
            return spoilt

        dict(model.named_parameters())[name].register_hook(spoil)
        (step,), _ = train(model, LoopbackTransport(), overlap, steps=1)
        assert step[2] == bad
