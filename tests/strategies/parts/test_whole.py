"""What ranks hold in parts is gathered by the parameters' names; what has none is refused, not left behind."""

import pytest
import torch
from torch import nn

from unisono.collectives.loopback import run_ranks
from unisono.errors import CheckpointError
from unisono.strategies.islands.island import Island, empty_state
from unisono.strategies.parts.whole import gather


def test_each_rank_brings_its_own():
    """Two ranks with a layer each have the tensors and plain values of both."""

    def rank(transport):
        torch.manual_seed(transport.rank)
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, parameter in enumerate(model.parameters()):
            optimizer.state[parameter] = {"moment": torch.full((2,), float(number)), "count": number}
        return gather(model, optimizer, lambda name: name.startswith(str(transport.rank)), transport)

    for whole in run_ranks(rank, 2):
        found = {name: tensor.tolist() for name, tensor in whole.tensors["optimizer"].items()}
        names = ("0.weight", "0.bias", "1.weight", "1.bias")
        assert found == {f"{name}/moment": [float(number)] * 2 for number, name in enumerate(names)}
        assert whole.notes["scalars"] == {name: {"count": number} for number, name in enumerate(names)}


@pytest.mark.parametrize("where", ["gathered", "island"])
@pytest.mark.parametrize("entry", [{"moments": [torch.ones(2)]}, {0: torch.ones(2)}, {"a/b": torch.ones(2)}])
def test_tensors_elsewhere_in_the_state(where, entry):
    """They are named, with the way out."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.bias] = entry
    with pytest.raises(CheckpointError, match=r"cannot save state\.optimizer\.scalars\.bias.*Hint: strategy exact"):
        if where == "gathered":
            run_ranks(lambda transport: gather(model, optimizer, lambda _: True, transport), 1)
        else:
            state, optimizer.state = optimizer.state, empty_state()
            Island(0, range(1), model, optimizer, state).pack(with_weights=False)
