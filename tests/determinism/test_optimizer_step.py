"""A step without torch's wrapper does what a step with it does, and never where somebody would miss the wrapper."""

import functools

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from reference import bits
from unisono.determinism import optimizer_step


def make(kind=torch.optim.SGD, **settings):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, kind(model.parameters(), lr=0.1, **settings)


def play(model, optimizer, step, steps=3):
    for number in range(steps):
        optimizer.zero_grad()
        model(torch.full((4, 3), 1.0 + number)).square().sum().backward()
        step(optimizer)
    return [bits(parameter) for parameter in model.parameters()]


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Open the short way, as a run does."""
    monkeypatch.setattr(optimizer_step.SHORTCUT, "is_open", True)


@pytest.fixture
def wrapped(monkeypatch):
    """Tell how often a step went through torch's wrapper: it alone calls this method."""
    calls = []
    monkeypatch.setattr(torch.optim.Optimizer, "_optimizer_step_code", lambda self: calls.append(1))
    return calls


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {"foreach": True}), (torch.optim.AdamW, {"fused": True}),
     (torch.optim.Adagrad, {}), (torch.optim.RMSprop, {"differentiable": False})],
)  # fmt: skip
def test_the_same_bits_without_the_wrapper(wrapped, kind, settings):
    """Weights are those of plain steps, and the wrapper is not called."""
    usual = play(*make(kind, **settings), lambda optimizer: optimizer.step())
    assert len(wrapped) == 3  # the control
    assert play(*make(kind, **settings), optimizer_step.step) == usual
    assert len(wrapped) == 3


@pytest.mark.parametrize("register", [
    lambda optimizer, hook: optimizer.register_step_pre_hook(hook),
    lambda optimizer, hook: optimizer.register_step_post_hook(hook),
    lambda optimizer, hook: register_optimizer_step_pre_hook(hook),
    lambda optimizer, hook: register_optimizer_step_post_hook(hook),
])  # fmt: skip
def test_hooks_are_called(wrapped, register):
    """Whoever registers a hook, of one optimizer or of all, is told of every step; afterwards nobody is."""
    model, optimizer = make()
    seen = []
    handle = register(optimizer, lambda *_: seen.append(1))
    play(model, optimizer, optimizer_step.step)
    handle.remove()
    play(model, optimizer, optimizer_step.step)
    assert len(seen) == len(wrapped) == 3


def test_spared_hooks_are_not(wrapped):
    """One that says so may be left out."""
    model, optimizer = make()

    @optimizer_step.spared
    def fail(*_):
        raise AssertionError

    optimizer.register_step_pre_hook(fail)
    play(model, optimizer, optimizer_step.step)
    with pytest.raises(AssertionError):
        play(model, optimizer, lambda each: each.step())


def test_a_profiler_sees_its_range():
    """The range is there as soon as somebody looks."""
    model, optimizer = make()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        play(model, optimizer, optimizer_step.step)
    assert [event.count for event in profiler.key_averages() if event.key == "Optimizer.step#SGD.step"] == [3]


def test_what_others_put_around_a_step_stays(monkeypatch):
    """In the object (as schedulers do) or in the class, with the wrapper's attributes or without."""
    model, optimizer = make()
    seen = []

    def around(step):
        @functools.wraps(step)
        def call(*args, **kwargs):
            seen.append(1)
            return step(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", around(torch.optim.SGD.step))
        assert torch.optim.SGD.step.hooked  # wraps has copied torch's mark
        play(model, optimizer, optimizer_step.step)
    optimizer.step = around(optimizer.step)
    play(model, optimizer, optimizer_step.step)
    assert len(seen) == 6


def test_a_schedule_hears_of_its_optimizer(wrapped):
    """No warning of a schedule that was stepped before its optimizer, and yet no wrapper."""
    model, optimizer = make()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    play(model, optimizer, optimizer_step.step)
    schedule.step()
    assert not wrapped


def test_a_schedule_around_somebody_elses_step(wrapped):
    """What is below the schedule's is called, when it is not the class's own."""
    model, optimizer = make()
    seen = []

    def step(self):
        seen.append(1)
        return torch.optim.SGD.step(self)

    optimizer.step = step.__get__(optimizer)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    play(model, optimizer, optimizer_step.step)
    assert len(seen) == len(wrapped) == 3


def test_a_step_that_another_optimizer_has_lent():
    """What a schedule put around one optimizer's step updates that one, whoever calls it."""
    (model, optimizer), (other, borrower) = make(), make()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    borrower.step = optimizer.step
    before = [bits(parameter) for parameter in other.parameters()]
    model(torch.ones(4, 3)).square().sum().backward()
    assert play(other, borrower, optimizer_step.step, 1) == before
    assert [bits(parameter) for parameter in model.parameters()] != before


def test_another_torch(wrapped, monkeypatch):
    """Where torch keeps its hooks elsewhere, its wrapper stays."""
    monkeypatch.setattr(optimizer_step, "_BEFORE", None)
    play(*make(), optimizer_step.step)
    assert len(wrapped) == 3


def test_outside_of_runs(wrapped, monkeypatch):
    """Where no run has opened the short way, torch's own is gone."""
    monkeypatch.setattr(optimizer_step.SHORTCUT, "is_open", False)
    play(*make(), optimizer_step.step)
    assert len(wrapped) == 3
