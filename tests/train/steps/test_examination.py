"""A step that is looked at: its samples' gradients make up the step's, and leaving one out does what is foretold."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from unisono.data.batches import XY
from unisono.strategies.objective import Objective
from unisono.train.steps.examination import DECADES, Examination, shown

X = torch.randn(11, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(11) % 3
PARTS = [range(4), range(4, 8), range(8, 11)]
KINDS = {
    "mean": {},
    "weighted mean": {"weight": lambda micro: (micro.y + 1).sum()},
    "weighted sum": {"weight": lambda micro: (micro.y + 1).sum(), "reduction": "sum"},
    "sum": {"reduction": "sum"},
}


def plain():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def looked_at(model, reduction="mean", weight=None, **other):
    """Look at the step over X and Y; also return its gradient by one pass over all replicas, made here."""

    def loss(micro):
        each = F.cross_entropy(model(micro.x), micro.y, reduction="none")
        if weight is not None:  # each sample by what it counts
            each = each * (micro.y + 1)
        return each.sum() if reduction == "sum" else each.sum() / (weight(micro) if weight else len(each))

    def fetch(replica, places):
        torch.manual_seed(replica)
        return XY(X[[*places]].clone(), Y[[*places]].clone())

    objective = Objective(loss, weight, reduction)
    start = copy.deepcopy(model.state_dict())
    total, counted = None, 0.0
    for replica, part in enumerate(PARTS):
        model.load_state_dict(start)
        micro = fetch(replica, part)
        count = float(weight(micro)) if weight else len(part)
        gradients = torch.autograd.grad(loss(micro), [*model.parameters()])
        scaled = [one * (count if reduction == "mean" else 1) for one in gradients]
        total = scaled if total is None else [a + b for a, b in zip(total, scaled, strict=True)]
        counted += count if reduction == "mean" or weight else 0
    model.load_state_dict(start)
    names = [name for name, _ in model.named_parameters()]
    gradient = {name: one / (counted or 1) for name, one in zip(names, total, strict=True)}
    return Examination(1, model, objective, PARTS, fetch, gradient | other)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_foretold_is_what_happens(kind):
    """Without dropout and batch norms: the samples add up to the step, and leaving one out changes it as was said."""
    found = looked_at(plain(), **KINDS[kind])
    found.look()
    samples, agreement = found.samples()
    assert agreement == pytest.approx(1, abs=1e-6)
    assert [one["replica"] for one in samples] == [0] * 4 + [1] * 4 + [2] * 3
    for place in (0, 5, 10):
        done = found.without([place])
        assert done["change"] == pytest.approx(samples[place]["change"], rel=1e-5)
        assert done["cosine"] == pytest.approx(samples[place]["cosine"], rel=1e-6)


def test_another_gradient_is_noticed():
    """The control: samples do not add up to a gradient that is not the step's."""
    model = plain()
    torch.manual_seed(9)
    found = looked_at(model, **{"0.weight": torch.randn(4, 5, dtype=torch.float64)})
    found.look()
    assert found.samples()[1] < 0.5


def test_several_left_out_at_once():
    """A replica that loses all of its samples has no pass."""
    found = looked_at(plain())
    found.look()
    both = found.without(range(8, 11))
    assert both["gradient_norm"] > 0
    assert found.without([])["change"] == pytest.approx(0, abs=1e-9)


def test_dropout_and_batch_norm():
    """Samples are computed without dropout, with the statistics of their micro-batch; the model stays as it was."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    before = copy.deepcopy(model.state_dict())
    found = looked_at(model)
    losses, told = found.look()
    samples, _ = found.samples()
    assert len(losses) == 3
    hidden = model[0](X[:4])
    expected = model[3](F.batch_norm(hidden, None, None, model[1].weight, model[1].bias, training=True))
    each = F.cross_entropy(expected, Y[:4], reduction="none")
    # the statistics are kept as float32
    assert [one["loss"] for one in samples[:4]] == pytest.approx(each.tolist(), rel=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert [*told["activations"]] == ["0", "1", "2", "3"]
    assert told["activations"]["1"]["least"] < 0 < told["activations"]["1"]["largest"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_histogram():
    """Each element is counted once: by decade, as zero, or as no finite number."""
    values = torch.tensor([0.0, 1e-12, 2e-9, 0.5, 0.05, -0.5, 3.0, 250.0, torch.nan, torch.inf], dtype=torch.float64)
    found = looked_at(plain(), **{"2.bias": values}).look()[1]["gradients"]["2.bias"]
    counts = dict(zip(["below", *DECADES], found["counts"], strict=True))
    expected = {"below": 1, -9: 1, -1: 2, -2: 1, 0: 1, 1: 1}
    assert {name: count for name, count in counts.items() if count} == expected
    assert (found["zeros"], found["not_finite"]) == (1, 2)


def test_out_of_scale():
    """An input ten times too large, which a confident model gets right, shows in its scale alone."""
    kept = X[3].clone()
    try:
        X[3] *= 100
        found = looked_at(plain())
        found.look()
        scales = [one["scale"] for one in found.samples()[0]]
    finally:
        X[3] = kept
    assert scales.index(max(scales)) == 3
    assert scales[3] > 30
    assert max(itertools.chain(scales[:3], scales[4:])) < 3


def test_what_is_shown():
    """Images as shades, tokens as numbers, single numbers as they are."""
    image = torch.zeros(1, 1, 8, 8)
    image[..., 4:] = 1
    found = shown(XY(image, torch.tensor([7])))
    assert found["values"] == [7]
    assert found["picture"] == ["        @@@@@@@@"] * 8
    assert shown((torch.arange(30)[None], torch.tensor([0.5, 2.0]))) == {
        "values": [0.5, 2.0], "tokens": [*range(30)]
    }  # fmt: skip
    assert all(len(line) == 28 for line in shown(torch.rand(1, 3, 64, 64))["picture"])
