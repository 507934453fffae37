"""The program around a call: what it unpacks is looked at before anything is done; a traceback shows the program."""

import traceback

import pytest
import torch
from torch import nn

import unisono


def parts():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)


def test_prepare_returns_what_it_was_given():
    """In the order given, as with accelerate; two names, as programs of 0.1 have, get model and optimizer."""
    with unisono.Run(replicas=1) as run:
        assert repr(run) == "<unisono.Run: exact, 1 replicas, rank 0 of 1, step 0>"
        given = parts()
        with pytest.raises(TypeError, match=r"^run\.prepare\(\) returns at most three .* takes 4\. Hint: model, optim"):
            _model, _optimizer, _loader, _scheduler = run.prepare(*given)
        model, optimizer, scheduler = run.prepare(*given)  # the run can still be prepared
        assert (model, optimizer, scheduler) == given
    with unisono.Run(replicas=1) as run:
        model, optimizer = run.prepare(*(given := parts()))
        assert (model, optimizer) == given[:2]
    with unisono.Run(replicas=1) as run:
        given = parts()
        found = run.prepare(given[0], given[1], scheduler=given[2])
        assert found == given
    with unisono.Run(replicas=1) as run:
        found = run.prepare(*(given := parts())[:2])
        assert found == given[:2]
    with unisono.Run(replicas=1) as run:
        model, _optimizer, scheduler = run.prepare(*parts()[:2], None)
        assert isinstance(model, nn.Linear) and scheduler is None
    with unisono.Run(replicas=1) as run:
        first, *others = run.prepare(*parts())
        assert isinstance(first, nn.Linear) and len(others) == 2
    with unisono.Run(replicas=1) as run:
        model, optimizer, scheduler = parts()
        nets, optimizers, schedules = run.prepare({"G": model}, {"G": optimizer}, {"G": scheduler})
        assert (nets, optimizers, schedules) == ({"G": model}, {"G": optimizer}, {"G": scheduler})
    with unisono.Run(replicas=1) as run:
        model, optimizer, _ = parts()
        found = run.prepare({"G": model}, {"G": optimizer})
        assert found == ({"G": model}, {"G": optimizer})


@pytest.mark.parametrize("is_theirs", [True, False])
def test_an_error_of_the_loss_shows_the_program(toy, is_theirs):
    """Two frames of ours at most beside the program's line and its function; of an error of ours at most one."""
    with toy.run() as (run, model, _):
        batch = next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
        with pytest.raises(RuntimeError if is_theirs else unisono.StepError) as caught:
            run.step(batch, lambda micro: model(micro.x[:, :2]) if is_theirs else torch.zeros(2))
    frames = traceback.extract_tb(caught.value.__traceback__)
    ours = [frame.filename for frame in frames if "/src/unisono/" in frame.filename]
    assert frames[0].filename == __file__
    assert len(ours) <= (2 if is_theirs else 1), frames
    assert any(frame.name == "<lambda>" for frame in frames) == is_theirs
