"""Averages of weights are right, the same bits on all ranks and after a resume, and leave the training alone."""

import copy

import pytest
import torch
from click.testing import CliRunner

import unisono
from train.callbacks.small import everywhere, fit
from unisono.callbacks import EMA, SWA, Callback
from unisono.checkpoint.format import pack
from unisono.checkpoint.interchange import state_dict_of
from unisono.cli.main import unisono as command
from unisono.errors import ConfigError


class Snapshots(Callback):
    """Keeps the weights after every step and what evaluations saw."""

    def __init__(self):
        self.steps, self.evaluated = [], []

    def on_step_end(self, loop):
        self.steps.append(weights(loop.model))

    def on_evaluation_start(self, loop):
        self.evaluated.append(weights(loop.model))


def weights(model):
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named if tensor.is_floating_point()}


def digest(average):
    return [tensor.view(torch.int32).tolist() for tensor in average.values()]


def test_ema_is_the_recursion():
    """Decay times the average plus the rest times the weights, from the initial weights on."""
    before, after, ema = Snapshots(), Snapshots(), EMA(0.9)
    before.name, after.name = "before", "after"
    _, trainer = fit([before, ema, after], epochs=1)
    expected = {name: tensor.double() for name, tensor in _initial().items()}
    for step in before.steps:
        expected = {name: 0.9 * tensor + 0.1 * step[name].double() for name, tensor in expected.items()}
    for name, tensor in expected.items():
        torch.testing.assert_close(ema.average[name], tensor.float(), rtol=1e-5, atol=1e-6)
    # Evaluations saw the average (the callback after EMA sees what it has put there), then the weights came back.
    assert digest(after.evaluated[0]) == digest(ema.average)
    assert digest(before.evaluated[0]) == digest(before.steps[-1]) == digest(weights(trainer.model))


def _initial():
    kept = {}

    class First(Callback):
        def on_run_start(self, loop):
            kept.update(weights(loop.model))

    fit([First()], epochs=1, test=False)
    return kept


def test_warm_up_forgets_the_beginning():
    """The first decay is 2/11 instead of the full one."""
    ema, steps = EMA(0.9999, warm_up=True), Snapshots()
    fit([steps, ema], epochs=1, max_steps=1, test=False)
    initial = _initial()
    for name, tensor in ema.average.items():
        expected = initial[name] * 2 / 11 + steps.steps[0][name] * 9 / 11
        torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-6)


def test_swa_is_the_mean_of_epochs():
    """The plain mean of the weights at the ends of the epochs that count; before there is one, evaluations use none."""
    swa, snapshots = SWA(start_epoch=1), Snapshots()
    fit([swa, snapshots], epochs=3)
    assert swa.num_averaged == 2
    for name, tensor in swa.average.items():
        expected = (snapshots.steps[9][name] + snapshots.steps[14][name]) / 2
        torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-6)
    assert digest(snapshots.evaluated[0]) == digest(snapshots.steps[4])


@pytest.mark.parametrize("make", [lambda: EMA(0.8), lambda: SWA()])
def test_any_world_and_after_a_resume(make, tmp_path):
    """The average's bits and the scores measured with it are one in all worlds, and after an interruption."""

    def program(transport, out=None, **settings):
        average = make()
        result, _ = fit([average], transport=transport, out=out, **settings)
        return digest(average.average), {name: value.hex() for name, value in result["metrics"].items()}

    expected = everywhere(program, worlds=(2, 3))
    fit([make()], out=tmp_path, max_steps=7)
    again = program("auto", tmp_path)
    assert [again[0], again[1]] == [expected[0], expected[1]]


@pytest.mark.parametrize("make", [lambda: EMA(0.8), lambda: SWA()])
def test_the_average_of_a_checkpoint_can_be_had(make, tmp_path):
    """The averaged weights in place of the trained ones, also through a run and a file; none by another name."""
    average = make()
    _, trainer = fit([average], out=tmp_path, test=False)
    name, other = type(average).__name__, copy.deepcopy(trainer.model)
    unisono.load_weights(other, tmp_path, average=name)
    assert digest(weights(other)) == digest(average.average) != digest(weights(trainer.model))
    with unisono.Run() as run:
        run.load_weights(tmp_path, other)
        assert digest(weights(other)) == digest(weights(trainer.model))
        run.load_weights(tmp_path, other, average=name)
    assert digest(weights(other)) == digest(average.average)
    file = tmp_path / "averaged.safetensors"
    assert (
        CliRunner().invoke(command, ["checkpoint", "export", str(tmp_path), str(file), "--average", name]).exit_code
        == 0
    )
    unisono.load_weights(unset := copy.deepcopy(trainer.model), file)
    assert digest(weights(unset)) == digest(average.average)
    with pytest.raises(unisono.CheckpointError, match=f"average 'other' .*; it has {name}\\. Hint: average= takes"):
        unisono.load_weights(other, tmp_path, average="other")
    with pytest.raises(unisono.ConfigError, match=r"which is no directory\. Hint: unisono checkpoint export RUN FILE"):
        unisono.load_weights(other, file, average=name)


def test_averages_of_other_makers():
    """A registered AveragedModel is one; SWA that has seen no epoch yet is none."""
    model = torch.nn.Linear(2, 2)
    theirs = torch.optim.swa_utils.AveragedModel(model)
    theirs.update_parameters(model)
    model.weight.data += 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = pack(model, optimizer, None, {}, {"mine": theirs, "callback/SWA": SWA()})
    assert torch.equal(state_dict_of(state, "mine")["weight"], theirs.module.weight)
    assert torch.equal(state_dict_of(state)["weight"], model.weight)
    with pytest.raises(unisono.CheckpointError, match=r"average 'SWA' .*; it has mine\."):
        state_dict_of(state, "SWA")


def test_the_training_does_not_notice():
    """The fingerprint is that of a run without averages, though its evaluations lent them out; the scores differ."""
    plain, averaged = fit()[0], fit([EMA(0.9)])[0]
    assert plain["fingerprint"] == averaged["fingerprint"]
    assert plain["metrics"] != averaged["metrics"]
    assert fit([EMA(0.9, evaluate=False)])[0]["metrics"] == plain["metrics"]


def test_copy_to():
    """Afterwards the average can be put into a model."""
    ema = EMA(0.5)
    _, trainer = fit([ema], epochs=1)
    ema.copy_to(trainer.model)
    assert digest(weights(trainer.model)) == digest(ema.average)


@pytest.mark.parametrize("make", [lambda: EMA(1.0), lambda: EMA(-0.1), lambda: SWA(-1)])
def test_wrong_settings_are_refused(make):
    """At once."""
    with pytest.raises(ConfigError, match="expected"):
        make()
