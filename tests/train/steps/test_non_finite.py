"""NaN and infinity: the run stops, or the step is skipped, alike on all ranks and after a resume."""

import json

import pytest
import torch
from torch.nn import functional as F

import unisono
from train.callbacks.small import data, everywhere, fit
from unisono.errors import ConfigError, NonFiniteError
from unisono.train.steps.non_finite import MOST_IN_A_ROW


def poisoned(*indices):
    """Return the data with infinite inputs at some samples."""
    clean = data()
    clean.arrays[0][list(indices)] = torch.inf
    return clean


def train(transport="auto", *, policy="skip", bad=(3,), out=None, run=None, **settings):
    """Fit on poisoned data and evaluate on clean data; return steps, skipped steps, fingerprint."""
    result, trainer = fit(
        transport=transport, train=poisoned(*bad), out=out, run={"non_finite": policy, **(run or {})}, **settings
    )
    return result["steps"], trainer.run.non_finite.num_skipped, result["fingerprint"], trainer._loop.num_skipped


def test_a_bad_step_is_skipped_in_any_world():
    """The step counts but changes nothing: one skip an epoch, the same bits for any number of ranks."""
    steps, skipped, fingerprint, _ = everywhere(train)
    assert (steps, skipped) == (10, 2)
    assert fingerprint != fit()[0]["fingerprint"]


def test_a_skipped_step_changes_neither_weights_nor_schedule(tmp_path):
    """The ledger says so; the weights before the next step are those before it; the schedule did not move."""
    schedule = lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5)  # noqa: E731
    train(out=tmp_path, schedule=schedule, epochs=1)
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    (bad,) = [index for index, line in enumerate(lines) if line["gradient"] == "skipped"]
    assert lines[bad]["lr"] == "nan"
    rates = [float.fromhex(line["lr"]) for line in lines if line["gradient"] != "skipped"]
    assert rates == [0.1 * 0.5**step for step in range(4)]
    if bad + 1 < len(lines):
        assert lines[bad]["weights"] == lines[bad + 1]["weights"]
    assert json.loads((tmp_path / "score.json").read_text())["non_finite"] == "skip"


def test_the_same_decisions_after_a_resume(tmp_path):
    """Interrupted and gone on: the same steps are skipped, and counted."""
    whole = train(epochs=3)
    train(out=tmp_path, epochs=3, max_steps=7)
    assert train(out=tmp_path, epochs=3) == whole


def test_stopping_is_the_default(tmp_path):
    """The error names step and samples; with `skip` left out the score does not mention it."""
    with pytest.raises(NonFiniteError, match=r"NaN or infinite in replica \d of 4"):
        train(policy="stop")
    fit(out=tmp_path)
    assert "non_finite" not in json.loads((tmp_path / "score.json").read_text())


def test_too_many_in_a_row_stop():
    """Where nothing is finite any more, skipping for ever would hide it."""
    with pytest.raises(NonFiniteError, match=f"step {MOST_IN_A_ROW + 1}: .* {MOST_IN_A_ROW + 1}th such step in a row"):
        train(bad=range(56), epochs=9, test=False)


def test_other_policies_are_refused():
    """Before anything starts."""
    with pytest.raises(ConfigError, match="'stop' or 'skip', got 'ignore'"):
        unisono.Run(non_finite="ignore")
    with pytest.raises(ConfigError, match="works with the strategy 'exact', got 'ddp'"):
        unisono.Run(non_finite="skip", strategy="ddp")


def test_the_loops_own_user_can_skip_too():
    """A loop of one's own: `run.step` returns the loss, which is not finite, and goes on."""
    with unisono.Run(replicas=2, non_finite="skip") as run:
        model = torch.nn.Linear(6, 4)
        before = model.weight.detach().clone()
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in run.steps(run.loader(poisoned(*range(56)), batch_size=28), epochs=1):
            loss = run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            assert loss != loss
        assert torch.equal(model.weight, before)
