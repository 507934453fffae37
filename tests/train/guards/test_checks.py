"""What is refused before the first step, each with the way out."""

import re

import pytest
import torch
from torch import nn

import unisono
from unisono.train.guards.checks import check_parts


def check(model, optimizer, scheduler):
    check_parts(model, {"": optimizer}, {} if scheduler is None else {"": scheduler})


def linear():
    model = nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_what_fits_is_taken():
    """A plain model, its optimizer, a scheduler or none; frozen parameters need no group."""
    model, optimizer = linear()
    check(model, optimizer, None)
    check(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3))
    model.bias.requires_grad_(False)
    check(model, torch.optim.SGD([model.weight], lr=0.1), None)


def plateau(model, optimizer):
    return model, optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def lazy(model, _):
    model = nn.Sequential(model, nn.LazyLinear(3))
    return model, torch.optim.SGD(model[0].parameters(), lr=0.1), None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model, optimizer: (lambda x: x, optimizer, None), "torch.nn.Module, got function"),
        (lambda model, optimizer: (model, model.parameters(), None), "torch.optim.Optimizer, got generator"),
        (lambda model, optimizer: (nn.DataParallel(model), optimizer, None), "the model is wrapped in DataParallel"),
        (lambda model, optimizer: (nn.Sequential(nn.DataParallel(model)), optimizer, None), "0 is wrapped"),
        (lambda model, optimizer: (nn.Linear(2, 2), optimizer, None), "2 of 2 parameters that the model does not"),
        (plateau, "run.register('plateau'"),
        (lazy, "'1.weight' has no shape yet"),
        (lambda model, optimizer: (model, optimizer, object()), "a scheduler with step"),
        (lambda model, optimizer: (model, optimizer, [1]), "Hint: data goes into run.loader(dataset, batch_size=...)"),
        (
            lambda model, optimizer: ([model, model], optimizer, None),
            "got list. Hint: models and optimizers by name: run.prepare(",
        ),
        (
            lambda model, optimizer: (model, [optimizer], None),
            "got list. Hint: one optimizer with a group for each part, or",
        ),
    ],
)
def test_what_cannot_be_exact_is_refused(change, said):
    """Each is named, before anything has started."""
    with pytest.raises(unisono.ConfigError, match=re.escape(said)):
        check(*change(*linear()))


def test_fsdp_is_refused_once_it_is_loaded():
    """A sharded model is known by its class, without importing FSDP for everyone."""
    from torch.distributed.fsdp import FSDPModule

    model, optimizer = linear()
    model.__class__ = type("Sharded", (FSDPModule, nn.Linear), {})  # what fully_shard does to a model
    with pytest.raises(unisono.ConfigError, match="wrapped in Sharded"):
        check(model, optimizer, None)


def test_parameters_without_a_group_are_said_once():
    """Trainable parameters that no group holds are a warning: they stay as they are."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.warns(UserWarning, match=r"2 trainable parameters are in no group .*: 1\.weight, \.\.\."):
        check(model, torch.optim.SGD(model[0].parameters(), lr=0.1), None)


def test_what_is_no_batch_and_no_model(toy):
    """Several models, a pair in place of a batch, and torch's loader in place of ours: each is named, with the fix."""
    with unisono.Run(replicas=2) as run:
        model, optimizer = linear()
        with pytest.raises(unisono.ConfigError, match=r"got list.*by name: run"):
            run.prepare([model, model], optimizer)
        run.prepare(model, optimizer)
        with pytest.raises(
            unisono.ConfigError, match=r"the batch that run\.steps\(\) yields, got tuple\. Hint: for batch"
        ):
            run.step((toy.x, toy.y), lambda micro: model(micro.x).sum())
        loader = torch.utils.data.DataLoader(toy.data, batch_size=8)
        with pytest.raises(unisono.ConfigError, match=r"got DataLoader\. Hint: .*with its \.dataset as DATASET"):
            run.steps(loader, epochs=1)
        with pytest.raises(unisono.ConfigError, match=r"got a DataLoader, .*Hint: pass its \.dataset"):
            run.loader(loader, batch_size=8)
        with pytest.raises(unisono.ConfigError, match=r"got a Loader, .*Hint: pass the data set that it was made of"):
            run.loader(run.loader(toy.data, batch_size=8), batch_size=8)
