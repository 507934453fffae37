"""Model parallel: one device's results, stages by cost or by map."""

import pytest
import torch
from torch import nn

import unisono
from ranks import run_threads
from strategies.strategy_runs import train
from unisono.errors import ConfigError
from unisono.strategies.model_parallel import place_layers
from unisono.strategies.options import ModelParallelOptions


def layers():
    """Return layers of 2080, 0, 1056, 0 and 330 parameters."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.mark.parametrize("options", [{}, {"devices": 3}, {"map": "1,1,0,0,1"}])
def test_results_are_those_of_one_device(options):
    """However the layers are placed; between processes the bits are those of a tree all-reduce."""
    chosen = unisono.strategy("model_parallel", **options)
    alone = train(None, chosen, build=layers)
    exact = train(None, unisono.strategy("exact"), build=layers)
    assert torch.allclose(torch.tensor(alone["values"]), torch.tensor(exact["values"]), atol=1e-6)
    tree = unisono.strategy("allreduce", algorithm="tree")
    pair, expected = (run_threads(lambda t, s=s: train(t, s, build=layers)["weights"], 2) for s in (chosen, tree))
    assert pair == expected
    assert sum(alone["report"]["stage_bytes"]) == 4 * sum(p.numel() for p in layers().parameters())


@pytest.mark.parametrize(("options", "stages"), [
    ({}, [["0"], ["1", "2", "3", "4"]]),
    ({"devices": 3}, [["0"], ["1", "2"], ["3", "4"]]),
    ({"map": (0, 0, 1, 1, 1)}, [["0", "1"], ["2", "3", "4"]]),
])  # fmt: skip
def test_stages_are_cut_by_cost_or_by_hand(options, stages):
    """The dearest stage is as cheap as can be."""
    found = place_layers(dict(layers().named_children()), ModelParallelOptions(**options))
    assert [len(stage) > 0 for stage in found] == [True] * len(stages)
    if options:
        assert found == stages or options == {"devices": 3}
    costs = [sum(sum(p.numel() for p in layers()[int(name)].parameters()) for name in stage) for stage in found]
    assert max(costs) == 2080


@pytest.mark.parametrize(("options", "message"), [
    ({"devices": 6}, "at least 6 layers for 6 devices"),
    ({"map": (0, 1)}, "a device from 0 to 1 for each of the layers"),
    ({"map": (0, 1, 2, 0, 0)}, "got map 0,1,2,0,0"),
])  # fmt: skip
def test_wrong_placements_are_refused(options, message):
    """Before the first step, with the layers' names."""
    with pytest.raises(ConfigError, match=message):
        place_layers(dict(layers().named_children()), ModelParallelOptions(**options))
    with pytest.raises(ConfigError, match=r"devices as a whole number of devices from 2 to .*, got 1"):
        ModelParallelOptions(devices=1)
