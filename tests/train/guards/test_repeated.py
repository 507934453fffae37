"""What a loss function keeps from call to call is refused where it decides the loss, and left alone where not."""

import functools
import random
from collections import deque
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import unisono
from unisono.errors import StepError
from unisono.train.guards import repeated

_calls = 0


class Model(nn.Module):
    """Has a place for what is kept, beside a buffer."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls, self.memory = nn.Linear(8, 4), 0, torch.arange(1.0, 5.0)  # a shift of all is no change
        self.register_buffer("average", torch.ones(4))

    def forward(self, x):
        return self.layer(x)


class Counting(Model):
    def forward(self, x):
        self.calls += 1
        return self.layer(x) / self.calls


class Remembering(Model):
    def forward(self, x):
        out = self.layer(x) - self.memory
        self.memory.mul_(0.9)
        return out


class Buffered(Model):
    """The control: the same state as a buffer, which is merged and saved; its calls are counted, and not used."""

    def forward(self, x):
        self.calls += 1
        out = self.layer(x) - self.average
        self.average.mul_(0.9)
        self.memory.add_(out.detach().mean())
        return out


def with_queue(model):
    queue = deque([torch.zeros(4)], maxlen=3)

    def loss(micro):
        out = model(micro.x)
        queue.append(out.detach().mean(0))
        return F.cross_entropy(out + sum(queue), micro.y)

    return loss


def drawing(generator, draw):
    return lambda model: lambda micro: F.cross_entropy(model(micro.x) * draw(generator), micro.y)


def with_global(model):
    def loss(micro):
        global _calls
        _calls += 1
        return F.cross_entropy(model(micro.x) / (1 + _calls), micro.y)

    return loss


def cached(model):
    @functools.cache
    def noise():
        return torch.randn(8)

    return lambda micro: F.cross_entropy(model(micro.x + noise()), micro.y)


class Scaled(torch.autograd.Function):
    """Its backward pass multiplies by how often it was called."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Scaled.calls += 1
        return gradient * Scaled.calls


class WithFunction(Model):
    def forward(self, x):
        return Scaled.apply(self.layer(x))


class Checkpointed(WithFunction):
    is_reentrant = False

    def forward(self, x):
        return checkpoint(super().forward, x.requires_grad_(), use_reentrant=self.is_reentrant)


class Reentrant(Checkpointed):
    is_reentrant = True


def counted(gradient):
    counted.calls = getattr(counted, "calls", 0) + 1
    return gradient * counted.calls


def counted_after(parameter):
    parameter.grad.copy_(counted(parameter.grad))


def hooked(hook, kind="register_hook"):
    """Return what makes a model with a hook of its weight's gradient."""

    def build():
        model = Model()
        getattr(model.layer.weight, kind)(hook)
        return model

    return build


def usual(model):
    return lambda micro: F.cross_entropy(model(micro.x), micro.y)


def counter():
    n = 0

    def count():
        nonlocal n
        n += 1
        return n

    return count


def with_two_counters(model):
    """The one that counts, and another that stands still, whose variable has the same name."""
    count, other = counter(), counter()

    def loss(micro):
        return F.cross_entropy(model(micro.x), micro.y) * (count() if other else 1)

    return loss


def train(build, make_loss, steps=2, **settings):
    """Return the fingerprint of a few steps, and the model."""
    inputs, targets = torch.arange(128.0).reshape(16, 8) / 128, torch.arange(16) % 4
    with unisono.Run(seed=0, replicas=2, **settings) as run:
        model = build()
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loss, loader = make_loss(model), run.loader(unisono.ArrayDataset(inputs, targets), batch_size=8)
        for batch in run.steps(loader, max_steps=steps, show_progress=False):
            run.step(batch, loss)
        return run.fingerprint(), model


REFUSED = {
    "counter": (Counting, usual, r"model\.calls"),
    "tensor": (Remembering, usual, r"model\.memory"),
    "queue": (Model, with_queue, r"queue"),
    "random": (Model, drawing(random.Random(0), lambda own: own.random()), "generator"),
    "numpy": (Model, drawing(np.random.default_rng(0), lambda own: own.random()), "generator"),
    "torch": (Model, drawing(torch.Generator(), lambda own: torch.rand((), generator=own)), "generator"),
    "global": (Model, with_global, "_calls"),
    "counters": (Model, with_two_counters, r"call to call: n\."),
    "cache": (Model, cached, r"other random numbers .*noise\(\) \(functools\.cache\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_decides_the_loss_is_refused(name):
    build, make_loss, kept = REFUSED[name]
    hint = "draw from torch" if kept == "generator" else r"in a model register_buffer.*run\.register"
    with pytest.raises(StepError, match=rf"step [12]: the loss function has .*{kept}.*Hint: {hint}") as caught:
        train(build, make_loss)
    assert len(str(caught.value).partition("Hint: ")[2].split()) <= 45


@pytest.mark.parametrize("steps", [1, 5])
def test_buffers_and_counters_are_left_alone(steps):
    """The second call leaves no trace: counters and sums stand where one call a micro-batch leaves them."""
    _, model = train(Buffered, usual, steps)
    assert model.calls == 2 * steps


def test_a_log_has_one_entry_a_call():
    log, total = [], torch.zeros(())

    def make_loss(model):
        def loss(micro):
            found = F.cross_entropy(model(micro.x), micro.y)
            log.append(found.item())
            total.add_(found.detach())
            return found

        return loss

    assert train(Model, make_loss, 4)[0] == train(Model, usual, 4)[0]
    assert len(log) == 8
    assert total.item() == pytest.approx(sum(log))


REFUSED_GRADIENTS = {
    "hook": (hooked(counted), r"layer\.weight.*counted\.calls"),
    "hook behind accumulation": (hooked(counted_after, "register_post_accumulate_grad_hook"), r"layer\.weight.*calls"),
    "function": (WithFunction, r"layer\.weight.*Scaled\.calls"),
    "checkpoint": (Checkpointed, r"layer\.weight.*Scaled\.calls"),
    "reentrant checkpoint": (Reentrant, r"layer\.weight.*Scaled\.calls"),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", REFUSED_GRADIENTS)
def test_what_decides_the_gradient_alone_is_refused(name, precision):
    build, kept = REFUSED_GRADIENTS[name]
    with pytest.raises(StepError, match=rf"step 1: the gradient of '{kept}.*Hint: .*keyed") as caught:
        train(build, usual, precision=precision)
    assert len(str(caught.value).partition("Hint: ")[2].split()) <= 45


def test_a_hook_that_keeps_nothing_passes(monkeypatch):
    """Nothing is computed again for it."""
    monkeypatch.delattr(repeated.Repeated, "_gradients")
    clamped = train(hooked(lambda gradient: gradient.clamp(-0.01, 0.01)), usual)[0]
    assert clamped != train(Model, usual)[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_hook_that_only_notes_leaves_no_trace(precision):
    """Its entries are those of the step's own passes; so are weights, buffers, draws and accumulated gradients."""
    norms, last, outside = [], [None], torch.ones((), requires_grad=True)

    def note(gradient):
        norms.append(gradient.norm().item())
        last[0] = gradient.clone()

    def with_outside(model):
        return lambda micro: F.cross_entropy(F.dropout(model(micro.x)) * outside, micro.y)

    noting, _ = train(hooked(note), with_outside, 4, precision=precision)
    accumulated, outside.grad = outside.grad, None
    assert noting == train(Model, with_outside, 4, precision=precision)[0]
    assert torch.equal(accumulated, outside.grad)
    assert len(norms) == 8
    assert last[0].norm().item() == norms[-1]


@pytest.mark.parametrize("is_counted", [True, False])
def test_with_several_optimizers(is_counted):
    counted.calls, settings = 0, {"max_steps": 2, "show_progress": False}
    with unisono.Run(seed=0, replicas=2) as run:
        models = {"a": Model(), "b": Model()}
        run.prepare(models, {name: torch.optim.SGD(each.parameters(), lr=0.1) for name, each in models.items()})
        if is_counted:
            models["b"].layer.weight.register_hook(counted)
        loader = run.loader(unisono.ArrayDataset(torch.ones(8, 8), torch.arange(8) % 4), batch_size=4)
        loss = lambda micro: F.cross_entropy(models["a"](micro.x) + models["b"](micro.x), micro.y)  # noqa: E731
        with pytest.raises(StepError, match=r"gradient of 'b\.layer\.weight'") if is_counted else nullcontext():
            for batch in run.steps(loader, **settings):
                run.step(batch, loss, update="a")
                assert counted.calls == 0  # b has no gradient in the update of a
                run.step(batch, loss, update="b")


def test_control_without_the_look_gradients_are_accepted(monkeypatch):
    monkeypatch.setattr(repeated.Repeated, "end", lambda self, step, judge: None)
    counted.calls = 0
    train(hooked(counted), usual)
    assert counted.calls == 4


def test_control_without_the_look_it_is_accepted(monkeypatch):
    monkeypatch.setattr(repeated.Repeated, "call", lambda self, step, function, micro, *_, **__: function(micro))
    assert train(Counting, usual)[1].calls == 4
