"""The ddp strategy is torch's DDP: the weights of a hand-written script, bit for bit."""

import pytest
import torch
from torch import nn

import unisono
from ranks import once, run_processes, run_threads
from strategies import ddp_programs
from strategies.conformance import loss_of
from strategies.ddp_knobs import KNOBS
from strategies.strategy_runs import toy_data
from unisono.errors import ConfigError, StepError


@once
def compared(world_size):
    """Return every rank's comparison."""
    return (run_threads if world_size == 1 else run_processes)(ddp_programs.compare, world_size)


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("knob", [*KNOBS, "control"])
def test_weights_are_those_of_a_script_written_by_hand(knob, world_size):
    """For every knob, on all ranks; another learning rate is seen."""
    assert all(report[knob] for report in compared(world_size))


class Choosy(nn.Module):
    """Has a part that it does not use."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, x):
        return self.used(x)


def test_unused_parameters_name_the_option():
    """Torch's complaint comes with what to write."""
    with unisono.Run(strategy="ddp") as run:
        model = Choosy()
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(StepError, match="find_unused_parameters=True"):
            for batch in run.steps(run.loader(toy_data(), batch_size=8), epochs=1):
                run.step(batch, loss_of(front))
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"gradient_as_bucket_view": True}])
def test_unused_parameters_are_named_in_the_first_step(options):
    """Before any rank compares gradients, with the parameters that got none; the options that help, help."""

    def play(**more):
        with unisono.Run(strategy=unisono.strategy("ddp", **options, **more)) as run:
            model = Choosy()
            front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            calls = []

            def loss_function(micro):
                calls.append(1)
                if more or len(calls) % 2 == 0 or options.get("accumulate", 1) == 1:
                    return loss_of(front)(micro)
                return loss_of(front)(micro) + model.unused(micro.x).sum()  # used in the first micro-batch only

            for batch in run.steps(run.loader(toy_data(), batch_size=8), epochs=1):
                run.step(batch, loss_function)
            return run.result()["finished"]

    names = r"step 1: some .* DDP waited for them: 'unused\.weight', 'unused\.bias' \(2 of 4\)"
    with pytest.raises(StepError, match=names):
        play()
    assert play(find_unused_parameters=True)
    if "accumulate" not in options:
        assert play(static_graph=True)


def test_a_model_that_is_not_the_prepared_one():
    """The plain model, one of its parts, another instance: DDP would not know of the gradient."""
    for pick in (lambda model, front: model, lambda model, front: front.used, lambda model, front: Choosy()):
        with unisono.Run(strategy=unisono.strategy("ddp", find_unused_parameters=True)) as run:
            model = Choosy()
            front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            batch = next(run.steps(run.loader(toy_data(), batch_size=8), epochs=1))
            with pytest.raises(StepError, match=r"step 1: the loss was computed without a call of the model that run"):
                run.step(batch, loss_of(pick(model, front)))


def test_threads_are_refused():
    """DDP talks through torch.distributed."""
    with pytest.raises(ConfigError, match=r"ddp works through torch.distributed.*got 2 threads"):
        run_threads(lambda transport: unisono.Run(strategy="ddp", transport=transport), 2)


def test_the_state_has_the_plain_model_s_names():
    """What is prepared has no ``module.`` in its names, and is otherwise the model."""
    with unisono.Run(strategy="ddp") as run:
        model = Choosy()
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert list(front.state_dict()) == list(model.state_dict())
        assert front.used is model.used
        assert [name for name, _ in front.named_parameters()] == [name for name, _ in model.named_parameters()]
        assert front.eval() is front
        assert not model.training


@pytest.mark.parametrize("hook", ["powersgd", "bf16"])
def test_compression_trains(hook):
    """Compressed gradients have bits of their own, and train."""
    with unisono.Run(strategy=unisono.strategy("ddp", comm_hook=hook)) as run:
        model = ddp_programs.model_of()
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
        loader = run.loader(toy_data(96), batch_size=32)
        losses = [run.step(batch, loss_of(front)) for batch in run.steps(loader, epochs=9)]
    assert losses[-1] < losses[0]
