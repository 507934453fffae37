"""A loop over epochs of the program's own, resumed: what it does behind epochs that are done already counts once."""

import contextlib

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import unisono
from cases import some_are_slow
from train.conftest import Killed, die
from unisono.train.guards import done_loops


def train(toy, out=None, *, stop_at=None, every=None, epochs=4):
    """Train in one loop for each epoch, with a schedule that steps behind it; return fingerprint and learning rate."""
    with toy.run(out=out, checkpoint_every=every) as (run, model, optimizer):
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        average = torch.optim.swa_utils.AveragedModel(model)
        run.register("schedule", schedule)
        run.register("average", average)
        loader = run.loader(toy.data, batch_size=12)  # five steps an epoch
        for epoch in range(epochs):
            for batch in run.steps(loader, epochs=epoch + 1):
                if batch.step == stop_at:
                    with contextlib.suppress(Killed):
                        run.step(batch, die)
                    return None
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            schedule.step()
            average.update_parameters(model)
        kept = [tensor.sum().item() for tensor in average.state_dict().values()]
        return run.fingerprint(), optimizer.param_groups[0]["lr"], schedule.last_epoch, kept


_STOPS = [(8, None), (13, 2), (3, None), (6, 1), (11, None), (16, 3), (20, 1)]


@pytest.mark.parametrize(("stop_at", "every"), some_are_slow(_STOPS, 2))
def test_a_resumed_run_ends_as_one_that_was_not(toy, tmp_path, capsys, stop_at, every):
    """Wherever it is killed, and whatever it has saved: schedule, average and weights are those of one go."""
    assert train(toy, tmp_path, stop_at=stop_at, every=every) is None
    assert train(toy, tmp_path, every=every) == train(toy)
    told = [line for line in capsys.readouterr().err.splitlines() if "back to what the checkpoint holds" in line]
    saved = max((stop_at - 1) // often * often for often in (every or 5, 5))  # the end of each loop is
    assert len(told) == (saved > 5)


def test_without_it_the_schedule_runs_ahead(toy, tmp_path, monkeypatch):
    """The control."""
    monkeypatch.setattr(done_loops.DoneLoops, "_put_back", lambda self, kept: None)
    train(toy, tmp_path, stop_at=13, every=1)
    assert train(toy, tmp_path, every=1)[1] == 0.1 * 0.5**6


def test_a_run_that_is_complete_is_left_alone(toy, tmp_path):
    """Nothing is moved twice there either, nor lost that is done behind the last loop."""
    done = train(toy, tmp_path)
    assert train(toy, tmp_path)[:3] == done[:3]
    more = train(toy, tmp_path, epochs=6)
    assert more == train(toy, epochs=6)


def test_states_are_compared_by_value():
    """Nested state is the same where all its values, types and dtypes are."""
    state = {"a": [torch.ones(2), (1, float("nan"))], "b": None}
    assert done_loops._is_same([np.arange(3)], [np.arange(3)])
    assert not done_loops._is_same([np.arange(3)], [np.arange(3.0)])
    assert done_loops._is_same(state, {"a": [torch.ones(2), (1, float("nan"))], "b": None})
    for other in (
        {"a": [torch.ones(2).double(), (1, float("nan"))], "b": None}, {"a": state["a"]}, {"a": [1, (1, 2)], "b": None},
        {"a": [torch.ones(2), (1, float("nan"))], "b": False}, {"a": [torch.ones(2)], "b": None}, [state],
    ):  # fmt: skip
        assert not done_loops._is_same(state, other)


def test_settings_of_the_optimizer_alone(toy, tmp_path):
    """A rate that a program halves behind each epoch, without a schedule."""

    def halve(out=None, stop_at=None):
        with toy.run(out=out, checkpoint_every=2) as (run, model, optimizer):
            loader = run.loader(toy.data, batch_size=12)
            for epoch in range(3):
                for batch in run.steps(loader, epochs=epoch + 1):
                    if batch.step == stop_at:
                        return None
                    run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                optimizer.param_groups[0]["lr"] /= 2
            return run.fingerprint()

    halve(tmp_path, 13)
    assert halve(tmp_path) == halve()
    assert unisono.Result.read(tmp_path)["finished"]


def begin(toy, out, last, change):
    with toy.run(out=out) as (run, model, optimizer):
        change(optimizer)
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2, max_steps=last):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        return optimizer.param_groups[0]["lr"]


def with_rate(rate):
    def change(optimizer):
        for group in optimizer.param_groups:
            group["lr"] = rate

    return change


@pytest.mark.parametrize("first", [None, 0.05], ids=["of the score", "set before"])
def test_a_setting_that_a_checkpoint_replaces(toy, tmp_path, capsys, first):
    """The program has set another one after run.prepare(), before its loop."""
    begin(toy, tmp_path, 3, with_rate(first or 0.1))
    assert begin(toy, tmp_path, 6, with_rate(0.02)) == (first or 0.1)
    [told] = [line for line in capsys.readouterr().err.splitlines() if "goes on with the optimizer's" in line]
    assert f"checkpoint: lr={first or 0.1}, not 0.02, in group 0. The program has set" in told
    assert "if batch.step == 4: optimizer.param_groups[0]['lr'] = 0.02." in told


@pytest.mark.slow
def test_settings_that_are_not_told(toy, tmp_path, capsys):
    """The same program once more, and a schedule that is made after run.prepare() and has begun to move them."""
    for last in (3, 6):
        begin(toy, tmp_path / "same", last, with_rate(0.02))
    for last in (3, 6):
        begin(toy, tmp_path / "schedule", last, lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer))
    assert "goes on with" not in capsys.readouterr().err
