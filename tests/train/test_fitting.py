"""What a fit settles before its first step: schedules of batches and samples, evaluations of a part."""

import contextlib
import itertools
import json
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

import unisono
from ranks import run_threads
from unisono.callbacks import EMA, EarlyStopping, Plateau
from unisono.errors import ConfigError, ScoreMismatch, WorkerFailed

SCHEDULE = unisono.BatchSchedule({0: 7, 5: 12, 9: 30})


def hardest(epoch):
    """Return weights that change with the epoch."""
    return np.arange(56) ** epoch


PLANS = {
    "plain": lambda: None,
    "curriculum": lambda: unisono.Curriculum(np.arange(56) % 11, {0: 0.3, 1: 0.7, 2: 1.0}),
    "weights": lambda: unisono.Weighted(hardest, epochs=3),
}


class Dies(unisono.Callback):
    """Ends the run before a step: in this process by an exception, else by SIGKILL of rank 1."""

    class Killed(Exception):
        """As by a kill: the step is not done, and nothing is saved."""

    def __init__(self, step=None, is_real=False):
        self.step, self.is_real = step, is_real

    def on_step_start(self, loop):
        if loop.step == self.step and not self.is_real:
            raise self.Killed
        if loop.step == self.step and loop.run.world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def fit(out, plan="plain", transport="auto", *, schedule=SCHEDULE, dies=None, callbacks=(), **settings):
    """Fit 56 samples for three epochs; return what is left of it."""
    generator = torch.Generator().manual_seed(0)
    data = unisono.ArrayDataset(
        torch.randn(56, 6, generator=generator), torch.randint(0, 4, (56,), generator=generator)
    )
    settings = {"part_every": 2, "part_samples": 9, "eval_every": "2 epochs", **settings}
    with unisono.Run(seed=0, replicas=5, out=out, transport=transport, checkpoint_every=3) as run:
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trainer = unisono.Trainer(
            run, model, optimizer, loss=nn.CrossEntropyLoss(), callbacks=[*callbacks, dies or Dies()]
        )
        trainer.fit(
            data, epochs=3, batch_size=schedule, plan=PLANS[plan](), test_set=data, show_progress=False, **settings
        )
    return left_in(out)


def left_in(out):
    """Return what a run has left: ledger, lines of metrics, fingerprint, last metrics, epochs."""
    result = json.loads((out / "result.json").read_text())
    lines = [(out / name).read_text() for name in ("ledger.jsonl", "metrics.jsonl")]
    return [*lines, result["fingerprint"], result["metrics"], result["epochs"]]


@pytest.mark.parametrize(
    "plan", ["curriculum", *(pytest.param(n, marks=pytest.mark.slow) for n in ("plain", "weights"))]
)
def test_one_run_on_any_number_of_workers(tmp_path, plan):
    """With batches that grow and samples that change, killed within a step on three and gone on with on one."""
    expected = fit(tmp_path / "1", plan)
    assert expected[-1] == 3
    for workers in (2, 3):
        found = run_threads(lambda transport: fit(tmp_path / f"{transport.world_size}", plan, transport), workers)
        assert found == [expected] * workers
    other = fit(tmp_path / "other", "curriculum" if plan == "plain" else "plain", max_steps=1)[0]
    assert json.loads(other)["samples"] != json.loads(expected[0].splitlines()[0])["samples"]  # the control
    sizes = [json.loads(line)["num_samples"] for line in expected[0].splitlines()]
    assert sizes == [7, 7, 7, 7, 7, 12, 9, 12, 12, 30, 2, 30, 26]

    def killed(transport):
        with contextlib.suppress(Dies.Killed):
            fit(tmp_path / "killed", plan, transport, dies=Dies(8))

    run_threads(killed, 3)
    assert fit(tmp_path / "killed", plan) == expected
    with pytest.raises(ScoreMismatch, match="batch_schedule"):
        fit(tmp_path / "killed", plan, schedule=unisono.BatchSchedule({0: 7, 5: 12, 9: 31}))


@pytest.mark.slow
def test_killed_by_a_signal(tmp_path):
    """A real worker, between two of its launches."""
    expected = fit(tmp_path / "alone", "weights")
    with pytest.raises(WorkerFailed):
        unisono.launch(fit, tmp_path / "killed", "weights", dies=Dies(8, is_real=True), workers=2)
    assert len((tmp_path / "killed" / "ledger.jsonl").read_text().splitlines()) < 13
    unisono.launch(fit, tmp_path / "killed", "weights", workers=3)
    assert left_in(tmp_path / "killed") == expected


def test_a_part_is_evaluated_by_steps(tmp_path):
    """The same samples every time, beside the whole evaluations, which come last; training has the bits it has."""
    steps = lambda lines, name: [  # noqa: E731
        line["step"] for line in map(json.loads, lines.splitlines()) if name in line["values"]
    ]
    ledger, lines, _, metrics, _ = fit(tmp_path / "part")
    assert steps(lines, "part_loss") == [2, 4, 6, 8, 10, 12]
    assert steps(lines, "test_loss") == [11, 13]
    assert metrics.keys() == {"part_loss", "part_accuracy", "test_loss", "test_accuracy"}
    assert ledger.startswith(fit(tmp_path / "none", part_every=None, max_steps=5)[0])
    whole = fit(tmp_path / "whole", part_every=2, part_samples=56, max_steps=2)[3]
    assert (whole["part_loss"], whole["part_accuracy"]) == (whole["test_loss"], whole["test_accuracy"])
    assert metrics["part_loss"] != metrics["test_loss"]


def test_callbacks_look_at_their_own_evaluations(tmp_path):
    """Of the part or of the whole; averages are lent to both."""
    stopping = EarlyStopping("part_loss", patience=2, min_delta=1e9)
    others = [EarlyStopping("test_loss", patience=2, min_delta=1e9), Plateau("part_loss")]
    others[0].name = "whole"
    fit(tmp_path / "stop", callbacks=[stopping, *others, EMA()])
    assert (stopping.num_bad, others[0].num_bad) == (2, 0)
    with pytest.raises(ConfigError, match="'part_loss', expected one of test_accuracy, test_loss"):
        fit(tmp_path / "no", part_every=None, callbacks=[EarlyStopping("part_loss")])
    with unisono.Run(seed=0, replicas=1) as run:
        model = nn.Linear(1, 1)
        trainer = unisono.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.MSELoss())
        with pytest.raises(ConfigError, match=r"part_every= evaluates a part of test_set=.*fit\(test_set=\.\.\.\)"):
            trainer.fit(unisono.ArrayDataset(torch.ones(3, 1)), epochs=1, batch_size=1, part_every=1)


def test_a_part_of_ones_own_evaluation():
    """`Run.evaluate(part=)`: so many, the same for a seed, on any number of workers; not beside `limit`."""
    data = unisono.ArrayDataset(torch.arange(40.0)[:, None], torch.zeros(40, dtype=torch.int64))

    def program(transport, seed=0):
        seen = []
        with unisono.Run(seed=seed, replicas=4, transport=transport) as run:
            model = nn.Linear(1, 2)
            run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

            def predict(micro):
                seen.extend(micro.x[:, 0].tolist())
                return model(micro.x), micro.y

            how = {"batch_size": 4, "part": 10}
            values = run.evaluate(data, predict, {"accuracy": unisono.Accuracy()}, **how)
            assert values == run.evaluate(data, predict, {"accuracy": unisono.Accuracy()}, **how)
            with pytest.raises(ConfigError, match="limit= takes the first samples, part= some that the seed chooses"):
                run.evaluate(data, predict, {}, limit=3, part=3)
        return seen

    one, three = run_threads(program, 1), run_threads(program, 3)
    assert len(set(one[0])) == 10
    assert sorted(one[0]) == sorted(itertools.chain(*three)) != sorted(run_threads(lambda t: program(t, 1), 1)[0])
    assert one[0][:10] == sorted(one[0][:10]) == one[0][10:]
