"""What a run trains: what it was prepared with, optimizers whose groups stay, and a gradient in every step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from strategies.conformance import CASES
from unisono.collectives.loopback import run_ranks
from unisono.strategies.catalog import find


def test_a_second_prepare_is_refused(toy):
    """All models come in one call; the run goes on with the first ones."""
    with toy.run() as (run, model, _):
        with pytest.raises(unisono.ConfigError, match=r"run\.prepare\(\) was called a second time.*by name: run"):
            other = nn.Linear(6, 4)
            run.prepare(other, torch.optim.SGD(other.parameters(), lr=0.1))
        batch = next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))


def test_a_prepare_that_failed_may_be_repeated(toy):
    """Nothing has been taken over."""
    with unisono.Run() as run:
        model = nn.Linear(6, 4)
        with pytest.raises(unisono.ConfigError, match="that the model does not have"):
            run.prepare(model, torch.optim.SGD(nn.Linear(6, 4).parameters(), lr=0.1))
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


class Detached(nn.Module):
    """Learns by a parameter that nobody prepared."""

    def __init__(self, model, other):
        super().__init__()
        self.call, self.other = [model], [other]

    def forward(self, x):
        return self.call[0](x).detach() + self.other[0](x)


def train_nothing(toy, transport, case, build, first=1):
    """Train with another model's loss from step `first` on; return the error, the step and whether weights stayed."""
    name, options = CASES[case]
    settings = {"transport": transport} if transport else {}
    step = 0
    with toy.run(strategy=find(name, options), replicas=None, **settings) as (run, model, _):
        wrong = build(model)
        before = run.fingerprint()
        try:
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
                step, before = batch.step, run.fingerprint()
                chosen = wrong if step >= first else model
                run.step(batch, lambda micro, chosen=chosen: F.cross_entropy(chosen(micro.x), micro.y))
        except unisono.StepError as error:
            return str(error), step, run.fingerprint() == before
        return "", step, False


def test_a_step_that_trains_nothing_is_refused(toy):
    """A loss of another instance, or of detached outputs, on every strategy, world and rank; weights stay."""
    told = r"step 1: no trainable parameter of the prepared model got a gradient"
    worlds = {"exact": (1, 2, 3), "allreduce": (1, 2, 3), "ps": (2, 3), "pipeline": (1, 2), "model_parallel": (1, 2)}
    for case, sizes in {**worlds, "fsdp": (1,), "ddp": (1,), "dp": (1,)}.items():
        for ranks in sizes:
            for _, step, is_untouched in (
                found := run_ranks(
                    lambda transport, case=case: train_nothing(
                        toy, transport, case, lambda model: Detached(model, nn.Linear(6, 4))
                    ),
                    ranks,
                )
                if ranks > 1
                else [train_nothing(toy, None, case, lambda model: Detached(model, nn.Linear(6, 4)))]
            ):
                assert (step, is_untouched) == (1, True), case
            assert all(told in message for message, _, _ in found), (case, ranks, found)


def test_another_instance(toy):
    """The habit as it is met: the loss of a second instance, from the first step or from the third, on 1 to 3 ranks."""
    for first in (1, 3):
        for ranks in (1, 2, 3):
            for message, step, is_untouched in run_ranks(
                lambda transport, first=first: train_nothing(
                    toy, transport, "exact", lambda model: nn.Linear(6, 4), first
                ),
                ranks,
            ):
                assert "got a gradient: nothing would be trained. Hint: compute the loss with the model" in message
                assert (step, is_untouched) == (first, True)


def unfreeze(toy, out=None, transport=None, stop_after=None, *, how="requires_grad"):
    """Train the last layer; from step 4 on the first one too."""
    settings = {"out": out, "checkpoint_every": 2, **({"transport": transport} if transport else {})}
    with unisono.Run(seed=0, replicas=4, **settings) as run:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        model[0].requires_grad_(False)
        groups = [{"params": model[2].parameters()}]
        if how == "requires_grad":
            groups.append({"params": model[0].parameters(), "lr": 1e-2})
        model, optimizer = run.prepare(model, torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1))
        first = model[0].weight.clone()
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
            if batch.step >= 4 and not model[0].weight.requires_grad:
                assert batch.step > 4 or torch.equal(model[0].weight, first)
                model[0].requires_grad_(True)
                if how == "group":
                    optimizer.add_param_group({"params": model[0].parameters(), "lr": 1e-2})
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            if batch.step == stop_after:
                if how == "group at the end":
                    optimizer.add_param_group({"params": model[0].parameters()})
                break
        return run.fingerprint()


def test_unfreezing_resumes(toy, tmp_path):
    """All parameters in the optimizer from the start: stopped before, at and after the step, on 1 and 2 ranks."""
    whole = unfreeze(toy)
    for stop in (2, 3, 4, 7):
        unfreeze(toy, tmp_path / str(stop), stop_after=stop)
        assert unfreeze(toy, tmp_path / str(stop)) == whole
    run_ranks(lambda transport: unfreeze(toy, tmp_path / "two", transport, 5), 2)
    assert run_ranks(lambda transport: unfreeze(toy, tmp_path / "two", transport), 2) == [whole] * 2


def test_groups_that_come_later_are_refused(toy, tmp_path):
    """At the next step, with the way out, and before a checkpoint is written that could not be loaded again."""
    told = (
        r"add_param_group\(\) was called after run\.prepare\(\): 2 groups instead of 1.*Hint: .*requires_grad_\(True\)"
    )
    for ranks in (1, 2):
        with pytest.raises(unisono.StepError, match=told):
            run_ranks(
                lambda transport, ranks=ranks: unfreeze(toy, tmp_path / f"a{ranks}", transport, how="group"), ranks
            )
        kept = unfreeze(toy, tmp_path / f"a{ranks}", stop_after=4, how="never")
        assert kept  # what was saved before loads
    with pytest.raises(unisono.CheckpointError, match=told):
        unfreeze(toy, tmp_path / "b", stop_after=3, how="group at the end")
    assert unfreeze(toy, tmp_path / "b", how="never")
