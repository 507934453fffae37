"""What a loop changes between steps without effect is refused in the step in which it happens."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune as pruning

import unisono
from unisono.errors import StepError
from unisono.train.guards.between_steps import BetweenSteps

GRADIENTS = r"step 1: the loop has changed gradients, which has no effect.*Run\(clip_norm=1\.0\)"


def train(after=None, before=None, **how):
    """Train three steps, with what the loop does around each; return the fingerprint."""
    with unisono.Run(seed=0, replicas=2, **how) as run:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        _, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        data = unisono.ArrayDataset(torch.randn(24, 4), torch.arange(24) % 3)
        for batch in run.steps(run.loader(data, batch_size=8), epochs=1):
            if before is not None:
                before(model, optimizer)
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            if after is not None:
                after(model, optimizer)
        return run.fingerprint()


def clip(model, _):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def clip_part(model, _):
    torch.nn.utils.clip_grad_value_(model[2].parameters(), 0.01)


def put_other(model, _):
    for parameter in model.parameters():
        parameter.grad = parameter.grad.clamp(-0.01, 0.01)


@pytest.mark.parametrize("change", [clip, clip_part, put_other])
def test_gradients_changed_after_the_step(change):
    """Clipping in the loop comes too late; the line to write instead is named."""
    with pytest.raises(StepError, match=GRADIENTS):
        train(change)


def test_gradients_changed_before_the_step():
    """Those are the last step's."""
    with pytest.raises(StepError, match="step 2: the loop has changed gradients"):
        train(before=clip)


def test_what_changes_no_gradient():
    """Clearing and measuring go on with the same bits; so would clipping, if nobody looked (the control)."""
    expected = train()
    assert train(lambda _, optimizer: optimizer.zero_grad()) == expected
    assert train(lambda _, optimizer: optimizer.zero_grad(set_to_none=False)) == expected
    assert train(lambda model, _: torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BetweenSteps, "check_gradients", lambda *_: None)
        assert train(clip) == expected


def put_layer(model, _):
    model[2] = nn.Linear(8, 3)


def put_weight(model, _):
    model[2].weight = nn.Parameter(torch.zeros(3, 8))


def add_layer(model, _):
    model.add_module("more", nn.Linear(3, 3))


def prune(model, _):
    pruning.l1_unstructured(model[0], "weight", amount=0.5)


@pytest.mark.parametrize(
    ("change", "name"),
    [(put_layer, "2.weight"), (put_weight, "2.weight"), (add_layer, "more.weight"), (prune, "0.weight_orig")],
)
def test_other_parameters(change, name):
    """A layer that was put in the place of another learns nothing, and no checkpoint would find it."""
    with pytest.raises(StepError, match=f"'{name}' is a new parameter in the model, which run.prepare"):
        train(change)


def test_other_parameters_in_the_optimizer():
    """Its groups are checkpointed by what they held at first."""

    def keep_last(model, optimizer):
        optimizer.param_groups[0]["params"] = [*model[2].parameters()]

    with pytest.raises(
        StepError, match=r"the parameters in an optimizer's groups are not those.*requires_grad_\(False\)"
    ):
        train(keep_last)


def test_values_copied_into_parameters():
    """The way that the hint names."""

    def copy(model, _):
        with torch.no_grad():
            model[2].weight.copy_(torch.zeros(3, 8))

    assert train(copy) != train()


def test_other_parameters_late(tmp_path):
    """Found before a checkpoint is written, wherever the loop stands."""
    with pytest.raises(unisono.errors.UnisonoError, match=r"'2\.weight' is a new parameter"):
        steps = iter(range(3))
        train(lambda model, _: put_weight(model, _) if next(steps) == 2 else None, out=tmp_path)
    assert not list((tmp_path / "checkpoints").glob("*3*"))


def halves(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def rates(moves, gives=True, make=halves, **how):
    """Train three steps with a schedule, one that halves the rate; return the rate of each, as the optimizer has it.

    What `moves` says is done with the schedule after each step.
    """
    found = []
    with unisono.Run(seed=0, **how) as run:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
        schedule = make(optimizer)
        run.prepare(model, optimizer, schedule if gives else None)
        if not gives:
            run.register("schedule", schedule)
        data = unisono.ArrayDataset(torch.randn(24, 4), torch.arange(24) % 3)
        for batch in run.steps(run.loader(data, batch_size=8), epochs=1):
            found.append(optimizer.param_groups[0]["lr"])
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            if moves:
                moves(schedule)
    return found


def move(schedule):
    schedule.step()


def of_two(kind):
    """Return a maker of a schedule that is made of two."""
    parts = torch.optim.lr_scheduler
    return lambda optimizer: {
        "in turn": lambda both: parts.SequentialLR(optimizer, both, milestones=[2]),
        "at once": parts.ChainedScheduler,
        "restarts": lambda both: parts.CosineAnnealingWarmRestarts(optimizer, 5),
    }[kind]([halves(optimizer), halves(optimizer)])


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
@pytest.mark.parametrize("make", [halves, of_two("in turn"), of_two("at once"), of_two("restarts")])
def test_a_schedule_that_the_loop_moves_too(make):
    """It would move twice as fast, which is refused in the same step; moved by one of both it goes as planned."""
    with pytest.raises(StepError, match=r"step 1: scheduler\.step\(\) was called in the loop.*run\.register\("):
        rates(move, make=make)
    planned = rates(None, make=make)
    assert rates(move, make=make, gives=False) == planned
    with pytest.MonkeyPatch.context() as patch:  # the control
        patch.setattr(BetweenSteps, "check_schedules", lambda *_: None)
        assert rates(move, make=make) != planned


def test_a_schedule_that_begins_anew():
    """What the loop puts back is no move; a checkpoint has it."""
    begun = []

    def begin_anew(schedule):
        schedule.load_state_dict(begun[0])

    def make(optimizer):
        schedule = halves(optimizer)
        begun.append(dict(schedule.state_dict()))
        return schedule

    assert len(rates(begin_anew, make=make)) == 3


def test_a_schedule_is_resumed(tmp_path):
    """What a checkpoint brings is no move of the loop's."""
    how = {"out": tmp_path, "checkpoint_every": 1}
    with unisono.Run(seed=0, **how) as run:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
        run.prepare(model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
        data = unisono.ArrayDataset(torch.randn(24, 4), torch.arange(24) % 3)
        for batch in run.steps(run.loader(data, batch_size=8), epochs=1):
            if batch.step == 3:
                break
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    assert rates(None, **how) == [0.2]
