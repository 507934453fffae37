"""What a step calls is what it was asked for, also where all but the loss is that of the step before."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import unisono
from unisono.collectives.places import HERE
from unisono.errors import PlaceError
from unisono.observe.phases import PhaseClock
from unisono.strategies.objective import Objective
from unisono.strategies.precision import MixedPrecision
from unisono.train.steps.timed import TimedObjectives


def test_one_is_made_of_an_objective_and_calls_its_present_loss():
    """The judge is there while the function runs, and gone when it has failed; what it looks for, it is given."""
    seen = []
    judge = SimpleNamespace(is_looking=True, look_at=seen.append, call=lambda function, micro: function(micro))
    timed = TimedObjectives(MixedPrecision(), judge, PhaseClock())
    objective = Objective(lambda micro: (micro, HERE.loss))
    made = timed.of(objective)
    assert made.loss(1) == (1, judge)
    assert seen == [(1, judge)]
    objective.loss = lambda micro: 1 / micro
    assert timed.of(objective) is made
    with pytest.raises(ZeroDivisionError):
        made.loss(0)
    assert HERE.loss is None
    judge.is_looking = False
    assert made.loss(1) == 1.0
    assert len(seen) == 1
    assert timed.of(Objective(len)) is not made


def test_each_step_minimises_its_own_loss_and_one_that_is_refused_changes_none():
    """A new function in every step, as loops write it; a step within a step is refused, and the outer one goes on."""
    with unisono.Run(replicas=2) as run:
        model = nn.Linear(1, 1)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
        data = unisono.ArrayDataset(torch.ones(8, 1), torch.ones(8, 1))
        said = []
        for batch in run.steps(run.loader(data, batch_size=4), epochs=1):

            def loss(micro, batch=batch):
                with pytest.raises(PlaceError):
                    run.step(batch, lambda _: 1 / 0)
                return 0 * model(micro.x).mean() + batch.step

            said.append(run.step(batch, loss))
    assert said == [1.0, 2.0]
