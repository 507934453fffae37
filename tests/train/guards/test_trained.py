"""A loss, metrics and callbacks as other libraries take them are answered when the trainer is made."""

import pytest
import torch
from torch import nn

import unisono
from unisono.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"loss": "cross_entropy"}, r"got 'cross_entropy'. Hint: loss=torch.nn.CrossEntropyLoss\(\)"),
        ({"loss": nn.MSELoss}, r"got the class MSELoss. Hint: loss=MSELoss\(\)"),
        ({"metrics": [unisono.Accuracy()]}, "expected metrics by name, got list"),
        ({"metrics": {"top5": unisono.Accuracy}}, r"got the class Accuracy. Hint: \{'top5': Accuracy\(\)\}"),
        ({"callbacks": [unisono.callbacks.LossAverage]}, r"Hint: callbacks=\[LossAverage\(\.\.\.\)\]"),
        ({"callbacks": unisono.callbacks.LossAverage()}, "expected callbacks as a list, got LossAverage"),
    ],
)
def test_what_is_not_what_it_should_be(given, said):
    """Refused before the run is prepared: the right call works afterwards."""
    with unisono.Run(replicas=1) as run:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ConfigError, match=said):
            unisono.Trainer(run, model, optimizer, **{"loss": nn.CrossEntropyLoss(), **given})
        assert unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss(), callbacks=[]).run is run
