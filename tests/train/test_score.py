"""The score: what defines a result, and what a resume would change."""

import json

import pytest
import torch
from torch import nn

import unisono
from unisono.data.datasets import ArrayDataset
from unisono.data.sampler import ExactSampler
from unisono.errors import ScoreMismatch
from unisono.observe.compare import diff
from unisono.train.score import describe_data, describe_model, describe_optimizer


def model(width=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))


def test_equal_models_are_equal():
    """The same class, structure and weights have one description, which is JSON-able."""
    assert describe_model(model()) == describe_model(model())
    assert json.loads(json.dumps(describe_model(model()))) == describe_model(model())
    assert describe_model(model())["num_parameters"] == 15


def test_what_changes_a_model():
    """Width, frozen parts, dtype change the structure; a seed or a buffer only the initial weights."""
    before = describe_model(model())

    def changed(other):
        found = describe_model(other)
        return {name for name in before if before[name] != found[name]}

    assert changed(model(width=4)) == {"num_parameters", "structure", "initial_weights"}
    assert changed(model().double()) == {"structure", "initial_weights"}
    frozen = model()
    frozen[0].bias.requires_grad_(False)
    assert changed(frozen) == {"structure"}
    assert changed(model(seed=1)) == {"initial_weights"}
    counted = model()
    counted[1].num_batches_tracked.add_(1)
    assert changed(counted) == {"initial_weights"}


def test_what_changes_an_optimizer():
    """Class, any group setting, the grouping and the scheduler count; not the state."""

    def describe(make, schedule=None):
        optimizer = make(model())
        return describe_optimizer(optimizer, schedule and schedule(optimizer))

    def adam(made, **settings):
        return torch.optim.Adam(made.parameters(), **settings)

    base = describe(adam)
    assert json.loads(json.dumps(base)) == base
    assert base == describe(adam)
    assert diff(base, describe(lambda made: torch.optim.AdamW(made.parameters())))[0] == "class: 'Adam' -> 'AdamW'"
    for settings in ({"lr": 0.5}, {"betas": (0.5, 0.9)}, {"eps": 1e-5}, {"weight_decay": 0.1}, {"amsgrad": True}):
        assert len(diff(base, describe(lambda made, settings=settings: adam(made, **settings)))) == 1
    split = describe(lambda made: torch.optim.Adam([{"params": layer.parameters()} for layer in made]))
    assert len(diff(base, split)) == 1
    cosine = describe(adam, lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5))
    other = describe(adam, lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6))
    assert "scheduler: None -> 'CosineAnnealingLR'" in diff(base, cosine)
    assert diff(cosine, other) == ["scheduler_state.T_max: 5 -> 6"]


def test_data():
    """Class, length, order and the data set's own fingerprint count."""
    data = ArrayDataset(torch.zeros(9))
    described = describe_data(data, ExactSampler(9, 4))
    assert described == {"class": "ArrayDataset", "num_samples": 9, "shuffle": True, "fingerprint": data.fingerprint}
    assert describe_data([1], ExactSampler(1, 4))["fingerprint"] is None
    data.fingerprint = "abc"
    assert describe_data(data, ExactSampler(9, 4, shuffle=False)) == {
        "class": "ArrayDataset", "num_samples": 9, "shuffle": False, "fingerprint": "abc",
    }  # fmt: skip


def test_diff():
    """One line per differing field with path, old and new, in order; nested, missing and new ones too."""
    old = {"a": 1, "b": {"c": [1, 2], "d": None}, "gone": "x", "same": {"y": 0}}
    new = {"b": {"c": [1, 3], "d": {"e": 1}}, "a": 1.5, "same": {"y": 0}, "more": False}
    assert diff(old, new) == [
        "a: 1 -> 1.5",
        "b.c: [1, 2] -> [1, 3]",
        "b.d: None -> {'e': 1}",
        "gone: 'x' -> None",
        "more: None -> False",
    ]
    assert diff(old, old) == []


@pytest.mark.parametrize("schedule", [None, torch.optim.lr_scheduler.ExponentialLR])
def test_a_tensor_as_learning_rate_is_a_number(schedule, tmp_path):
    """A learning rate given as a tensor stands in the score as its number; another number is another score."""

    def train(lr, epochs):
        with unisono.Run(seed=0, replicas=2, out=tmp_path / "run") as run:
            model = nn.Linear(4, 2)
            optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(lr))
            model, optimizer = run.prepare(model, optimizer, schedule and schedule(optimizer, 0.5))
            loader = run.loader(ArrayDataset(torch.eye(4), torch.tensor([0, 1, 0, 1])), batch_size=2)
            for batch in run.steps(loader, epochs=epochs):
                run.step(batch, lambda micro: nn.functional.cross_entropy(model(micro.x), micro.y))
            return json.loads((tmp_path / "run" / "score.json").read_text())["optimizer"]["groups"][0]["lr"]

    assert train(0.25, 1) == train(0.25, 2) == 0.25
    with pytest.raises(ScoreMismatch, match=r"lr: 0\.25 -> 0\.5"):
        train(0.5, 3)
