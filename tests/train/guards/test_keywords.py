"""Keywords of other libraries' loaders are answered with what to write here."""

import inspect

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import unisono
from unisono.train.guards.keywords import ANSWERS, answers_keywords


@pytest.fixture(scope="module")
def trainer():
    with unisono.Run(replicas=2) as run:
        model = nn.Linear(6, 4)
        yield unisono.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.CrossEntropyLoss())


def test_every_keyword_of_torchs_loader_is_known_or_answered(trainer, toy):
    """Whatever torch's DataLoader takes, `Run.loader` takes too or says what to write in its place."""
    known = inspect.signature(unisono.Run.loader).parameters
    theirs = inspect.signature(DataLoader).parameters.keys() - known - {"dataset"}
    assert len(theirs) > 8
    for name in theirs:
        with pytest.raises(unisono.ConfigError, match=rf"^Run\.loader\(\) has no {name}=: .*Hint: "):
            trainer.run.loader(toy.data, batch_size=8, **{name: 1})


@pytest.mark.parametrize(
    ("call", "name", "said"),
    [
        (
            lambda trainer, data, more: trainer.fit(data, epochs=1, batch_size=8, **more),
            "collate_fn",
            "collate= is the",
        ),
        (lambda trainer, data, more: trainer.fit(data, epochs=1, batch_size=8, **more), "sampler", "Subset"),
        (lambda trainer, data, more: trainer.fit(data, **more), "train_dataloaders", r"fit\(train_set, batch_size="),
        (lambda trainer, data, more: trainer.evaluate(data, **more), "pin_memory", "leave it out"),
        (lambda trainer, data, more: trainer.predict(data, **more), "drop_last", "no sample is dropped"),
        (lambda trainer, data, more: trainer.run.evaluate(data, len, {}, **more), "shuffle", "evaluation keeps"),
    ],
)
def test_wherever_data_is_given(trainer, toy, call, name, said):
    """`fit`, `evaluate` and `predict` answer as well, with the fix."""
    with pytest.raises(unisono.ConfigError, match=f"has no {name}=: .*{said}"):
        call(trainer, toy.data, {name: None})


def test_all_else_is_pythons(trainer, toy):
    """A keyword that nobody knows is a TypeError as ever, and one that a function has is its own."""
    with pytest.raises(TypeError, match="bach_size"):
        trainer.run.loader(toy.data, bach_size=8)
    assert len(trainer.run.loader(toy.data, batch_size=8, shuffle=False)) == 7


def test_a_functions_own_keyword_stays_its_own():
    """Control: what a function has is never answered, and its name and words are as before."""

    @answers_keywords
    def load(*, timeout: int) -> int:
        """Load."""
        return timeout

    assert "timeout" in ANSWERS
    assert load(timeout=3) == 3
    assert (load.__name__, load.__doc__) == ("load", "Load.")
