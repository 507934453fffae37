"""An island's weights, buffers and optimizer state are in the model and the optimizer only while it is inside."""

import pytest
import torch
from torch import nn

from reference import bits
from unisono.errors import StepError
from unisono.strategies.islands.island import Island, empty_state


def island_of(kind=torch.optim.Adam, **settings):
    """Return an island with its model and optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = kind(model.parameters(), lr=0.1, **settings)
    state, optimizer.state = optimizer.state, empty_state()
    island = Island(1, range(2, 4), model, optimizer, state)
    island.start_round([name for name, _ in model.named_parameters()])
    return island, model, optimizer


def train(island, model):
    """Do a step of two replicas."""
    with island.inside():
        island.start_step(2)
        for replica in island.replicas:
            island.start_replica()
            model(torch.randn(5, 3)).square().sum().mul(0.5).backward()
            assert island.add(replica, 0.5)
        island.finish_step()
    island.update(lambda: None)


def everything(model):
    """Return the bytes of a model."""
    return [bits(value) for value in model.state_dict().values()]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad])
def test_the_model_is_as_before(kind):
    """Between steps: weights, buffers, gradients and the optimizer's state; the island has moved."""
    island, model, optimizer = island_of(kind)
    before = everything(model)
    train(island, model)
    assert everything(model) == before
    assert not optimizer.state and all(parameter.grad is None for parameter in model.parameters())
    with island.inside():
        assert everything(model) != before
    assert everything(model) == before
    with island.lent():
        assert len(optimizer.state) == 4
    assert not optimizer.state


def test_the_model_is_as_before_after_an_error():
    """A loss that fails leaves nothing behind."""
    island, model, _ = island_of()
    before = everything(model)
    with pytest.raises(ZeroDivisionError), island.inside():
        island.start_step(1)
        model(torch.randn(5, 3)).sum().backward()
        raise ZeroDivisionError
    island.give_up()
    assert everything(model) == before and model[0].weight.grad is None


def look(island):
    """Return the checksum of an island's weights."""
    island.look_at_weights()
    return island.weights_sum


def test_a_state_goes_from_island_to_island():
    """What `pack` returns makes another island the same, to the next bit."""
    island, model, optimizer = island_of()
    train(island, model)
    from unisono.checkpoint import format as checkpoint_format

    whole = checkpoint_format.pack(model, optimizer, None, {})
    tensors, notes = island.pack(with_weights=True)
    other, model_2, _ = island_of()
    other.unpack({name: value.clone() for name, value in tensors.items()}, notes, whole)
    assert look(other) == look(island)
    for each, net in ((island, model), (other, model_2)):
        torch.manual_seed(1)
        train(each, net)
    assert look(other) == look(island)
    assert {name: bits(value) for name, value in other.pack(with_weights=True)[0].items()} == {
        name: bits(value) for name, value in island.pack(with_weights=True)[0].items()
    }
    assert not any("/weights/" in name for name in island.pack(with_weights=False)[0])


def test_an_optimizer_that_learns_in_its_groups_is_refused():
    """Islands share the groups: the first one's step would change the second one's."""

    class Growing(torch.optim.SGD):
        def step(self, closure=None):
            self.param_groups[0]["lr"] *= 1.1
            return super().step(closure)

    island, model, _ = island_of(Growing)
    with pytest.raises(StepError, match="Growing has changed its group's 'lr' in a step: islands share the groups"):
        train(island, model)
