"""The trainer: a run with evaluation in place, equal to a loop of one's own."""

import json
import random

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F

import unisono
from ranks import run_threads
from train.conftest import build_batch_norm
from unisono import callbacks


def fit(toy, *, epochs=2, transport="auto", test=True, more=None, **settings):
    """Fit and return (result, model)."""
    with unisono.Run(**{"seed": 0, "replicas": 4, **settings}, transport=transport) as run:
        model = build_batch_norm()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss(), metrics=more)
        result = trainer.fit(
            toy.data, epochs=epochs, batch_size=12, test_set=toy.data if test else None, show_progress=False
        )
        return result, model


def test_is_a_loop_of_ones_own(toy):
    """`fit` gives the fingerprint that `Run.steps` and `Run.step` give; evaluation does not disturb it."""
    own, _ = toy.train(build=build_batch_norm)
    assert fit(toy)[0]["fingerprint"] == own
    assert fit(toy, test=False)[0]["fingerprint"] == own


def test_metrics_are_right(toy):
    """Loss and accuracy are those of the whole test set under the final model in evaluation mode."""
    result, model = fit(toy)
    model.eval()
    with torch.no_grad():
        output = model(toy.x)
    assert result["metrics"]["test_accuracy"] == (output.argmax(1) == toy.y).double().mean().item()
    assert result["metrics"]["test_loss"] == pytest.approx(F.cross_entropy(output, toy.y).item(), rel=1e-6)


def test_result_is_the_file(toy, tmp_path):
    """What `fit` returns is what ``result.json`` holds, metrics included."""
    result, _ = fit(toy, out=tmp_path)
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert set(result["metrics"]) == {"test_loss", "test_accuracy"}


def test_any_world(toy):
    """Fingerprint and metrics are equal for any number of ranks."""

    def program(transport):
        result, _ = fit(toy, transport=transport)
        return result["fingerprint"], {name: value.hex() for name, value in result["metrics"].items()}

    expected = run_threads(program, 1)[0]
    for world_size in (2, 3, 4):
        assert run_threads(program, world_size) == [expected] * world_size


def test_nothing_left_to_do(toy, tmp_path):
    """A finished run that is started again trains nothing, and tells the same result; its file is not touched."""
    first, _ = fit(toy, out=tmp_path)
    written = (tmp_path / "result.json").stat()
    again, _ = fit(toy, out=tmp_path)
    assert again == json.loads(json.dumps(first))
    assert again["samples_per_s"] > 0
    assert (tmp_path / "result.json").stat().st_mtime_ns == written.st_mtime_ns


def test_own_metrics(toy):
    """Metrics are chosen by name; the loss is always there."""
    result, _ = fit(toy, more={"again": unisono.Accuracy()})
    assert set(result["metrics"]) == {"test_loss", "test_again"}


def test_progress_is_the_leaders(toy, capfd):
    """Progress goes to standard error, from the leader alone, and not at all when it is switched off."""

    def program(transport):
        with unisono.Run(replicas=2, transport=transport) as run:
            model = build_batch_norm()
            trainer = unisono.Trainer(
                run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.CrossEntropyLoss()
            )
            trainer.fit(toy.data, epochs=1, batch_size=12, test_set=toy.data)

    run_threads(program, 2)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("test_accuracy") == 1
    fit(toy)
    assert capfd.readouterr() == ("", "")


def test_the_training_loss_is_of_the_steps_since_the_last_line(toy, capfd):
    """Where two evaluations come after one step, the second has none to tell of."""
    with unisono.Run(replicas=2) as run:
        model = build_batch_norm()
        trainer = unisono.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.CrossEntropyLoss())
        how = {"epochs": 1, "batch_size": 12, "max_steps": 2, "test_set": toy.data, "part_every": 2, "part_samples": 5}
        trainer.fit(toy.data, **how)
    lines = [line for line in capfd.readouterr().err.splitlines() if "_loss" in line]
    assert ["train_loss" in line for line in lines] == [True, False], lines
    assert [word for line in lines for word in ("part_loss", "test_loss") if word in line] == ["part_loss", "test_loss"]


def test_modes_are_the_users(toy):
    """A part left in evaluation mode stays so; evaluation after an epoch puts every part's mode back."""

    def batches_seen(part_is_training):
        with unisono.Run(replicas=4) as run:
            model = build_batch_norm()
            model[1].train(part_is_training)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss())
            trainer.fit(toy.data, epochs=2, batch_size=12, test_set=toy.data, show_progress=False)
            assert [module.training for module in model] == [True, part_is_training, True]
            return int(model[1].num_batches_tracked)

    assert batches_seen(True) == 10
    assert batches_seen(False) == 0


class Draws(unisono.Callback):
    """Draws in hooks that it is told, from all three generators."""

    def __init__(self, *hooks):
        self.found = []
        for hook in hooks:
            setattr(type(self), hook, self._draw)

    def _draw(self, loop):
        self.found.append((loop.step, torch.rand(()).item(), random.random(), np.random.rand()))


@pytest.mark.parametrize("hooks", [("on_step_end",), ("on_step_start", "on_step_end"), ("on_epoch_end",)])
def test_what_callbacks_draw_depends_on_the_step_alone(toy, hooks, tmp_path):
    """Generators are set only where a callback looks, but then as in a loop of one's own, also after a resume."""

    def play(max_steps, out=None):
        draws = type("These", (Draws,), {})(*hooks)
        with unisono.Run(seed=0, replicas=4, out=out) as run:
            model = build_batch_norm()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss(), callbacks=[draws])
            trainer.fit(toy.data, epochs=2, batch_size=12, max_steps=max_steps, show_progress=False)
            assert not run.between.is_lazy
        return draws.found

    whole = play(10)
    own = {}
    with toy.run(build=build_batch_norm) as (run, model, _):
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
            own["on_step_start", batch.step] = torch.rand(()).item(), random.random(), np.random.rand()
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            own["on_step_end", batch.step] = torch.rand(()).item(), random.random(), np.random.rand()
    if "on_epoch_end" in hooks:
        assert whole == [(step, *own["on_step_end", step]) for step in (5, 10)]
    else:
        assert whole == [(step, *own[hook, step]) for step in range(1, 11) for hook in hooks]
    assert play(5, tmp_path) + play(10, tmp_path) == whole


def test_sample_numbers_of_a_step_cannot_be_changed(toy):
    """They are the sampler's own, and the ledger's hash of them may come later."""
    with toy.run() as (run, model, _):
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1, max_steps=1):
            with pytest.raises(ValueError, match="read-only"):
                batch.indices[0] = 1
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))


class Counted:
    """The first sample numbers that were asked for, in order."""

    def __init__(self, data):
        self.data, self.asked = data, []

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        self.asked.append(index)
        return self.data[index]


def test_limits_and_the_sanity_check(toy):
    """A limited evaluation sees the first samples alone; the check before training fails at once and changes no bit."""

    def play(test_set, **more):
        with unisono.Run(seed=0, replicas=4) as run:
            model = build_batch_norm()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss())
            result = trainer.fit(
                toy.data, epochs=1, batch_size=12, test_set=test_set, show_progress=False, max_steps=3, **more
            )
            model.eval()
            with torch.no_grad():
                right = (model(toy.x[:10]).argmax(1) == toy.y[:10]).double().mean().item()
        return result, right

    plain, _ = play(toy.data)
    counted = Counted(toy.data)
    checked, right = play(counted, sanity_check=True, eval_limit=10)
    assert counted.asked == [*range(10), *range(10)]
    assert checked["fingerprint"] == plain["fingerprint"]
    assert checked["metrics"]["test_accuracy"] == right
    broken = unisono.ArrayDataset(toy.x[:, :3], toy.y)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        play(broken, sanity_check=True)
    with pytest.raises(unisono.ConfigError, match="eval_limit"):
        play(toy.data, eval_limit=0)


class Looks(unisono.Callback):
    """Draws nothing, and notes what the generators still wait for."""

    draws = False

    def __init__(self):
        self.waiting = []

    def on_step_end(self, loop):
        self.waiting.append(loop.run.between._pending)


def test_callbacks_that_draw_nothing_spare_the_generators(toy):
    """Before them nothing is set; one that may draw, behind them, finds what it would find alone."""

    def play(*more):
        with unisono.Run(seed=0, replicas=4) as run:
            model = build_batch_norm()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss(), callbacks=more)
            trainer.fit(toy.data, epochs=1, batch_size=12, show_progress=False)

    alone, behind = type("One", (Draws,), {})("on_step_end"), type("Two", (Draws,), {})("on_step_end")
    looks, beside = Looks(), Looks()
    play(looks)
    play(beside, behind)
    play(alone)
    assert looks.waiting == [("after", step) for step in range(1, 6)]
    assert beside.waiting == [None] * 5  # the control
    assert behind.found == alone.found


def test_how_often(toy, tmp_path):
    """Evaluations, lines and checkpoints count steps or epochs."""

    def play(out, **every):
        with unisono.Run(seed=0, replicas=4, out=out, checkpoint_every="2 epochs") as run:
            model = build_batch_norm()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss())
            trainer.fit(toy.data, epochs=5, batch_size=12, test_set=toy.data, show_progress=False, **every)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [line["step"] for line in lines if "test_loss" in line["values"]], [line["step"] for line in lines]

    assert play(tmp_path / "a", eval_every="2 epochs", log_every="5 epochs") == ([10, 20, 25], [5, 10, 15, 20, 25])
    assert sorted(path.name[:13] for path in (tmp_path / "a/checkpoints").glob("step-*")) == [
        "step-00000020", "step-00000025",
    ]  # fmt: skip
    assert play(tmp_path / "b", eval_every=4)[0] == [4, 8, 12, 16, 20, 24, 25]


def test_a_long_evaluation_is_shown(toy, capsys, monkeypatch):
    """How far it is, on the leader, for as long as it takes."""
    monkeypatch.setattr("unisono.observe.progress.PLAIN_EVERY_S", 0.0)
    with unisono.Run(seed=0, replicas=4) as run:
        model = build_batch_norm()
        trainer = unisono.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.CrossEntropyLoss())
        many = unisono.ArrayDataset(toy.x.repeat(10, 1), toy.y.repeat(10))
        trainer.fit(toy.data, epochs=1, batch_size=12, test_set=many)
        trainer.evaluate(many)
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("evaluation")]
    assert [line.split()[1] for line in told] == ["0/3", "1/3", "2/3"]


class Named:
    """Samples that are no pairs."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return {"input": torch.zeros(6), "label": 0}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data": Named()}, r"got a dict of input, label.*collate="),
        ({"data": torch.utils.data.TensorDataset(*[torch.zeros(12)] * 3)}, "of 3"),
        ({"metrics": {"f1": torchmetrics.classification.MulticlassF1Score(4)}}, r"unisono.TorchMetric\(MulticlassF1"),
        ({"metrics": {"f1": len}}, "'f1' to inherit unisono.Metric, got builtin"),
        ({"callbacks": [callbacks.EMA()], "strategy": "pipeline"}, "EMA averages whole weights"),
        ({"callbacks": [callbacks.SWA()], "strategy": "fsdp"}, "SWA averages whole weights"),
        ({"callbacks": [callbacks.GradientMonitor()], "strategy": "pipeline"}, "which strategy pipeline does not"),
    ],
)
def test_what_does_not_fit_is_said_with_the_way_out(toy, settings, said):
    """Samples that are no pairs, metrics of others, callbacks that need what the strategy does not give."""
    given = {"data": toy.data, "strategy": "exact", "metrics": None, "callbacks": (), **settings}
    with unisono.Run(seed=0, replicas=4, strategy=given["strategy"]) as run:
        model = build_batch_norm()
        with pytest.raises(unisono.ConfigError, match=said):
            unisono.Trainer(
                run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.CrossEntropyLoss(),
                metrics=given["metrics"], callbacks=given["callbacks"],
            ).fit(given["data"], epochs=1, batch_size=12, show_progress=False)  # fmt: skip


@pytest.mark.parametrize(
    ("callback", "said"), [(callbacks.EMA, "on the workers alone"), (callbacks.GradientMonitor, "ps")]
)
def test_a_parameter_server_has_no_part_of_some_callbacks(callback, said):
    """Batch statistics and gradients are not the same on all ranks there; nor are gradients under local SGD."""

    def program(transport):
        with unisono.Run(seed=0, replicas=4, strategy="ps", transport=transport) as run:
            model = build_batch_norm()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with pytest.raises(unisono.ConfigError, match=said):
                unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss(), callbacks=[callback()])

    run_threads(program, 2)
    assert not unisono.strategy("allreduce", sync_every=2).shares_gradients
    assert unisono.strategy("allreduce").shares_gradients


def test_the_loss_has_its_name(toy):
    """A metric called loss would take the loss's place in every evaluation."""
    with pytest.raises(unisono.ConfigError, match=r"the metric 'loss' \(Accuracy\) has the name .*Hint: leave it out"):
        fit(toy, more={"loss": unisono.Accuracy()})


@pytest.mark.parametrize(
    ("train", "test", "error", "said"),
    [
        (True, False, unisono.ConfigError, r"got a DataLoader.*\.dataset"),
        (False, True, unisono.ConfigError, r"got a DataLoader.*\.dataset"),
        (False, range(0), unisono.DataError, "got an empty range"),
        (False, iter([1]), unisono.ConfigError, "map-style data set"),
    ],
)
def test_data_is_looked_at_before_the_first_step(toy, train, test, error, said):
    """A torch loader in place of a data set, for training or for evaluation, is found before a step is done."""
    loader = torch.utils.data.DataLoader(toy.data, batch_size=8)
    with unisono.Run(replicas=2) as run:
        model = build_batch_norm()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss())
        with pytest.raises(error, match=said):
            trainer.fit(
                loader if train else toy.data, epochs=1, batch_size=12, show_progress=False,
                test_set=loader if test is True else None if test is False else test,
            )  # fmt: skip
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
