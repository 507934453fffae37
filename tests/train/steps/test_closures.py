"""Optimizers that compute the loss themselves: several evaluations of one step, the same on any number of workers."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from ranks import run_threads
from unisono.errors import ConfigError, NonFiniteError, RankDivergence
from unisono.train.steps.closures import takes_closure
from unisono.train.steps.stepper import Stepper

DATA = unisono.ArrayDataset(
    torch.randn(22, 6, generator=torch.Generator().manual_seed(1)),
    torch.randn(22, 1, generator=torch.Generator().manual_seed(2)),
)


def model_of(rate=0.2):
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(rate), nn.Linear(8, 1))


def lbfgs(model):
    return torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, history_size=4, line_search_fn="strong_wolfe")


def play(transport, out, max_steps=6, replicas=4):
    with unisono.Run(replicas=replicas, out=out, checkpoint_every=2, transport=transport) as run:
        model = model_of()
        model, _ = run.prepare(model, lbfgs(model))
        for batch in run.steps(run.loader(DATA, batch_size=11), epochs=9, max_steps=max_steps):
            run.step(batch, lambda micro: F.mse_loss(model(micro.x), micro.y))
        return run.fingerprint()


def test_bits_do_not_depend_on_the_number_of_workers(tmp_path):
    """Ledgers, with how often the loss was asked for, are equal on 1, 2, 3 ranks, and where the run was resumed."""
    found = {ranks: run_threads(play, ranks, str(tmp_path / str(ranks))) for ranks in (1, 2, 3)}
    assert len({fingerprint for ranks in found.values() for fingerprint in ranks}) == 1
    for name, ranks, steps in (("resumed", 2, 3), ("resumed", 1, 6)):
        run_threads(play, ranks, str(tmp_path / name), steps)
    ledgers = {name: (tmp_path / name / "ledger.jsonl").read_text() for name in ("1", "2", "3", "resumed")}
    assert len(set(ledgers.values())) == 1
    asked = [int(number) for number in re.findall(r'"evaluations": (\d+)', ledgers["1"])]
    assert len(asked) == 6
    assert min(asked) > 1


def test_an_evaluation_of_one_rank_s_own_is_noticed(monkeypatch, tmp_path):
    """The control: ranks that see different losses in their line searches are stopped."""
    own = Stepper._compute_again

    def cheat(self, *args):
        found = own(self, *args)
        return found._replace(loss=found.loss * (1 + self._setting.transport.rank))

    monkeypatch.setattr(Stepper, "_compute_again", cheat)
    with pytest.raises(RankDivergence):
        run_threads(play, 2, str(tmp_path / "out"))


def test_it_is_what_plain_torch_computes():
    """With one replica, and nothing that draws, weights and batch statistics are those of a plain loop, bit for bit."""
    with unisono.Run(replicas=1) as run:
        ours, theirs = model_of(0.0), model_of(0.0)
        theirs.load_state_dict(ours.state_dict())
        ours, _ = run.prepare(ours, lbfgs(ours))
        plain = lbfgs(theirs)
        for batch in run.steps(run.loader(DATA, batch_size=11), epochs=3):
            run.step(batch, lambda micro: F.mse_loss(ours(micro.x), micro.y))
            x, y = (torch.as_tensor(array)[torch.from_numpy(batch.indices.copy())] for array in DATA.arrays)

            def closure(x=x, y=y):
                plain.zero_grad()
                loss = F.mse_loss(theirs(x), y)
                loss.backward()
                return loss

            plain.step(closure)
        for name, tensor in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], tensor), name


def test_what_is_not_finite_on_the_way_leaves_the_weights_alone():
    """The error comes from the third evaluation; the weights are those that the step began with."""
    with unisono.Run(replicas=2) as run:
        model = model_of()
        model, _ = run.prepare(model, lbfgs(model))
        calls, before = 0, [parameter.detach().clone() for parameter in model.parameters()]

        def loss(micro):
            nonlocal calls
            calls += 1
            return F.mse_loss(model(micro.x), micro.y) * (float("nan") if calls > 4 else 1)

        with pytest.raises(NonFiniteError, match="step 1: loss or gradient is NaN"):
            for batch in run.steps(run.loader(DATA, batch_size=11), epochs=1):
                run.step(batch, loss)
        assert calls == 6
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clip_norm": 1.0}, "does not go with clip_norm or clip_value. Hint: leave it out."),
        ({"precision": "fp16"}, "does not go with precision fp16. Hint: precision bf16."),
        ({"non_finite": "skip"}, "does not go with non_finite skip. Hint: non_finite stop."),
        ({"strategy": "allreduce"}, "does not go with strategy allreduce. Hint: strategy exact."),
        ({"strategy": unisono.strategy("exact", island_steps=2), "replicas": 2}, "strategy exact with islands"),
    ],
)
def test_what_does_not_go_with_it_is_refused(settings, said):
    """What would change gradients between evaluations, or make ranks ask differently."""
    with unisono.Run(**settings) as run, pytest.raises(ConfigError, match=re.escape(said)):
        model = model_of()
        run.prepare(model, lbfgs(model))


def test_other_optimizers_are_asked_for_nothing(tmp_path):
    """A closure that may be left out is; ledger lines have no word more."""
    parameter = nn.Parameter(torch.ones(1))
    kinds = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Rprop, torch.optim.Adafactor]
    assert not any(takes_closure(kind([parameter])) for kind in kinds)
    assert takes_closure(torch.optim.LBFGS([parameter]))
    with unisono.Run(out=tmp_path) as run:
        model = model_of()
        model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in run.steps(run.loader(DATA, batch_size=11), epochs=1):
            run.step(batch, lambda micro: F.mse_loss(model(micro.x), micro.y))
    assert "evaluations" not in Path(tmp_path, "ledger.jsonl").read_text()


def test_averages_and_schedules_of_swa_utils(tmp_path):
    """AveragedModel and SWALR of torch need nothing special: a resumed run has the same averages and rates."""

    def average(out, max_steps):
        with unisono.Run(replicas=2, out=out, checkpoint_every=2) as run:
            model = model_of()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.01, anneal_epochs=4)
            model, _ = run.prepare(model, optimizer, schedule)
            kept = torch.optim.swa_utils.AveragedModel(model)
            run.register("average", kept)
            for batch in run.steps(run.loader(DATA, batch_size=11), epochs=9, max_steps=max_steps):
                run.step(batch, lambda micro: F.mse_loss(model(micro.x), micro.y))
                if batch.step > 2:
                    kept.update_parameters(model)
            return [tensor.tolist() for tensor in kept.state_dict().values()], optimizer.param_groups[0]["lr"]

    whole = average(tmp_path / "whole", 6)
    average(tmp_path / "parts", 3)
    assert average(tmp_path / "parts", 6) == whole
