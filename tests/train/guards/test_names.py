"""Names of other libraries are answered with what a run and a trainer have in their place."""

import inspect

import pytest
import torch
from torch import nn

import unisono
from unisono.train.guards.names import ANSWERS, SET_BY


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("backward", "run.step\\(batch, lambda micro: loss\\)"), ("save_checkpoint", "checkpoint_every="),
        ("resume", "the same out="), ("train", "unisono.Trainer\\("), ("is_main_process", "run.world.is_leader"),
        ("evalute", "did you mean 'evaluate'"), ("global_step", "batch.step"), ("unwrap_model", "not a wrapper"),
        ("clip_gradients", "clip_norm="), ("autocast", "precision="), ("wait_for_everyone", "transport.barrier"),
    ],
)  # fmt: skip
def test_what_there_is_instead(toy, name, said):
    """On a run, with the line to write."""
    with toy.run() as (run, _, _), pytest.raises(AttributeError, match=f"^a Run has no '{name}'. Hint: .*{said}"):
        getattr(run, name)


def test_a_trainer_answers_too():
    """Its own names are not answered, and what is private has no hint."""
    with unisono.Run(replicas=1) as run:
        model = nn.Linear(2, 2)
        trainer = unisono.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.CrossEntropyLoss())
        with pytest.raises(AttributeError, match=r"^a Trainer has no 'train'. Hint: .*fit\(train_set"):
            trainer.train(1)
        with pytest.raises(AttributeError, match=r"^a Trainer has no '_nothing'.$"):
            trainer._nothing  # noqa: B018
        assert not hasattr(trainer, "save_model")
        assert callable(trainer.fit) and trainer.run is run


def test_nothing_is_answered_that_there_is():
    """Control: the names are those of others; only `fit`, which a run is asked for, is a trainer's own."""
    assert not ANSWERS.keys() & {*dir(unisono.Run)}
    assert ANSWERS.keys() & {*dir(unisono.Trainer)} == {"fit"}


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("seed", 5, "unisono.Run(seed=5)"), ("precision", "bf16", "unisono.Run(precision='bf16')"),
        ("clip_norm", 1.0, "unisono.Run(clip_norm=1.0)"), ("directory", "runs/a", "unisono.Run(out='runs/a')"),
    ],
)  # fmt: skip
def test_a_setting_of_a_run_that_is_made(toy, name, value, line):
    """Is refused, with the line to write; an attribute of the program's own is not."""
    with toy.run() as (run, _, _):
        before = run.seed, run.precision, run.clipping, run.directory
        with pytest.raises(AttributeError) as refused:
            setattr(run, name, value)
        assert str(refused.value).startswith(f"run.{name} = {value!r} comes too late")
        assert str(refused.value).endswith(f"Hint: {line}.")
        assert before == (run.seed, run.precision, run.clipping, run.directory)
        run.history = [1]
        assert run.history == [1]


def test_all_keywords_of_a_run_are_refused():
    assert {*SET_BY.values()} == {*inspect.signature(unisono.Run).parameters}
