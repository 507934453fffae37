"""What both interfaces refuse alike, and the controls of their scripts."""

import pytest
import torch
from torch.nn import functional as F

from compat.accelerate import scripts as of_accelerate
from compat.fabric import scripts as of_fabric
from compat.shared import trained_by, turn
from unisono.compat.accelerate import Accelerator
from unisono.compat.fabric import Fabric
from unisono.errors import ConfigError, StepError
from unisono.strategies import exact


@pytest.mark.parametrize("classify", [of_accelerate.classify, of_fabric.classify])
def test_what_depends_on_the_rank_is_seen(tmp_path, monkeypatch, classify):
    """The controls: data that depends on the rank, and generators that nobody keys, part the ledgers."""
    folder = tmp_path / "a"
    assert trained_by(classify, folder, 1, habit=1.0)[1] != trained_by(classify, folder, 2, habit=1.0)[1]
    monkeypatch.setattr(exact, "key_generators", lambda *_: None)
    folder = tmp_path / "b"
    assert trained_by(classify, folder, 1)[1] != trained_by(classify, folder, 2)[1]


def twice(run, model, optimizer, train):
    for x, y in train:
        loss = F.cross_entropy(model(x), y)
        run.backward(loss * 0.5)
        run.backward(loss * 0.5)


def outside(run, model, optimizer, train):
    run.backward(F.cross_entropy(model(torch.zeros(1, 8)), torch.tensor([0])))


def in_evaluation(run, model, optimizer, train):
    model.eval()
    for batch in train:
        turn(run, model, optimizer, batch)


def a_pass_left(run, model, optimizer, train):
    for _ in range(2):
        for batch in train:
            turn(run, model, optimizer, batch)
            if run.sync_gradients:
                break


def closure(run, model, optimizer, train):
    optimizer.step(lambda: 0.0)


def retained(run, model, optimizer, train):
    run.backward(torch.tensor(0.0), retain_graph=True)


def another_name(run, model, optimizer, train):
    run.register_save_state_pre_hook(print)


@pytest.mark.parametrize(
    ("habit", "error", "words"),
    [
        (twice, StepError, "add the losses"),
        (outside, StepError, r"model\.train\(\) before the loop"),
        (in_evaluation, StepError, r"model\.train\(\) before the loop"),
        (a_pass_left, StepError, "one after the other"),
        (closure, StepError, "needs no closure"),
        (retained, ConfigError, "retain_graph"),
        (another_name, AttributeError, r"docs/compat\.md"),
    ],
)
@pytest.mark.parametrize("library", ["accelerate", "fabric"])
def test_habits_that_are_refused(library, habit, error, words):
    """What would not be exact is refused where it happens, with what to write instead."""
    if library == "accelerate":
        run = Accelerator(replicas=3)
        prepared = of_accelerate.parts(run)
    else:
        run = Fabric(devices=3)
        prepared = of_fabric.parts(run)
    with pytest.raises(error, match=words):
        habit(run, *prepared)


@pytest.mark.parametrize("library", ["accelerate", "fabric"])
def test_an_optimizer_of_no_model_that_was_taken_over(library):
    """It is named what to call, and how."""
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if library == "accelerate":
        with pytest.raises(ConfigError, match=r"got one of 0\. Hint: accelerator\.prepare\(model, optimizer\)"):
            Accelerator(replicas=3).prepare(optimizer)
    else:
        with pytest.raises(ConfigError, match=r"got one of 0\. Hint: fabric\.setup\(model, optimizer\)"):
            Fabric(devices=3).setup_optimizers(optimizer)
