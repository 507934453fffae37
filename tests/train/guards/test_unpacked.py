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


def test_three_names_as_with_accelerate():
    """It says what to write, and the run can be prepared afterwards: by two names, by one, by none, or by a star."""
    with unisono.Run(replicas=1) as run:
        assert repr(run) == "<unisono.Run: exact, 1 replicas, rank 0 of 1, step 0>"
        model, optimizer, scheduler = parts()
        with pytest.raises(TypeError, match=r"^run\.prepare\(\) returns 2 things, and this line takes 3\. Hint: mod"):
            model, optimizer, scheduler = run.prepare(model, optimizer, scheduler)
        model, optimizer = run.prepare(model, optimizer, scheduler)
        assert isinstance(model, nn.Linear)
    for take in (
        lambda run, *given: run.prepare(*given),
        lambda run, *given: [each for each in run.prepare(*given)],  # noqa: C416 - another instruction
        lambda run, *given: (*run.prepare(*given), None),
    ):
        with unisono.Run(replicas=1) as run:
            assert isinstance(take(run, *parts())[0], nn.Linear)
    with unisono.Run(replicas=1) as run:
        first, *others = run.prepare(*parts())
        assert isinstance(first, nn.Linear) and len(others) == 1


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
