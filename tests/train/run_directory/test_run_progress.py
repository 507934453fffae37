"""What a run leaves at its end: a result that no later launch worsens, and state that can be stored."""

import json
import math
import pathlib
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.checkpoint.store import list_steps
from unisono.errors import ConfigError


def result_of(out):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads((out / "result.json").read_text(), parse_constant=refuse)


def test_a_finished_result_stays(toy, tmp_path):
    """A launch that finds nothing left to do leaves result.json as it is, byte for byte, and returns it."""
    toy.train(out=tmp_path)
    before = (tmp_path / "result.json").read_bytes()
    with toy.run(out=tmp_path) as (run, _, _):
        assert list(run.steps(run.loader(toy.data, batch_size=12), epochs=2)) == []
        assert run.result() == json.loads(before)
        with pytest.raises(ConfigError, match="nothing to do"):
            next(run.steps(run.loader(toy.data, batch_size=12), epochs=2))
    assert (tmp_path / "result.json").read_bytes() == before
    with toy.run(out=tmp_path) as (run, _, _):
        list(run.steps(run.loader(toy.data, batch_size=12), epochs=2))
        run.record({"late": 0.5})
    assert result_of(tmp_path) == json.loads(before) | {"metrics": {"late": 0.5}}


def test_totals_over_launches(toy, tmp_path):
    """Seconds, steps and samples of all launches add up, those of a killed one up to its last checkpoint."""
    toy.train(out=tmp_path, checkpoint_every=2, stop_after=5)  # saved at 4, and 5 when it was left
    toy.train(out=tmp_path, epochs=2)
    totals = result_of(tmp_path)["totals"]
    assert (totals["launches"], totals["steps"], totals["samples"]) == (2, 10, 112)
    assert totals["train_s"] > result_of(tmp_path)["train_s"] > 0
    assert totals["samples_per_s"] > 0
    toy.train(out=tmp_path, epochs=3)
    totals = result_of(tmp_path)["totals"]
    assert (totals["launches"], totals["steps"], totals["samples"]) == (3, 15, 168)
    toy.train(out=tmp_path, epochs=3)
    assert result_of(tmp_path)["totals"] == totals


def test_the_speed_is_that_of_the_clock_in_loops(toy, tmp_path, monkeypatch):
    """What the loop's body takes counts; what comes before the loop, and between two, does not."""
    passed = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + passed[0])
    monkeypatch.setattr("unisono.train.run_directory.usage.time", clock)
    with toy.run(out=tmp_path) as (run, model, _):
        for epochs in (1, 2):
            passed[0] += 1e6
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=epochs):
                passed[0] += 100
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    told = result_of(tmp_path)
    seconds = told["totals"]["samples"] / told["samples_per_s"]
    assert 1000 <= seconds + 0.5 < 2000  # ten steps
    assert told["samples_per_s_within"] > told["samples_per_s"]


def test_a_lost_result_is_written_anew_with_the_totals(toy, tmp_path):
    """Killed after the last checkpoint: the result tells what the steps have cost, not what finding them has."""
    toy.train(out=tmp_path)
    before = result_of(tmp_path)
    (tmp_path / "result.json").unlink()
    toy.train(out=tmp_path)
    again = result_of(tmp_path)
    assert (again["fingerprint"], again["ledger_head"]) == (before["fingerprint"], before["ledger_head"])
    assert (again["totals"]["launches"], again["totals"]["steps"]) == (2, 10)
    assert again["samples_per_s"] == again["totals"]["samples_per_s"] > 0
    (tmp_path / "result.json").write_text("[]")
    with pytest.warns(UserWarning, match=r"written again at the end: .*result\.json"):
        toy.train(out=tmp_path)
    assert result_of(tmp_path)["fingerprint"] == before["fingerprint"]


def test_metrics_that_are_not_finite(toy, tmp_path):
    """NaN and infinities lose nothing: result.json is valid JSON, and the checkpoint of the step is there."""
    with toy.run(out=tmp_path) as (run, model, _):
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            run.step(batch, lambda micro: nn.functional.cross_entropy(model(micro.x), micro.y))
            run.record({"nan": math.nan, "inf": torch.tensor(-math.inf), "good": torch.tensor([0.5]), "yes": True})
        assert math.isnan(run.result()["metrics"]["nan"])
    assert result_of(tmp_path)["metrics"] == {"nan": "nan", "inf": "-inf", "good": 0.5, "yes": 1}
    with toy.run(out=tmp_path) as (run, _, _):
        list(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
        assert run.result()["steps"] == 5


@pytest.mark.parametrize("value", [None, "0.5", {0.5}, torch.zeros(2), 10**400])
def test_metrics_that_are_no_numbers(toy, value):
    """They are refused where they are recorded, by name."""
    with toy.run() as (run, _, _), pytest.raises(ConfigError, match=r"numbers as metrics, got metrics\['x'\]"):
        run.record({"good": 1.0, "x": value})


@pytest.mark.parametrize(
    "value",
    [pathlib.Path("/data"), {1, 2}, torch.float32, object(), 1 << 5000, b"bytes", torch.zeros(2), [[{"a": {3}}]]],
)
def test_settings_that_cannot_be_stored(value):
    """They are refused when the run is made, by name."""
    with pytest.raises(ConfigError, match=r"cannot save settings\['x'\].* Hint: settings are part of the score"):
        unisono.Run(settings={"good": 1, "x": value})


def test_settings_that_hold_themselves():
    """A value without an end is one message."""
    endless: list = []
    endless.append(endless)
    with pytest.raises(ConfigError, match=r"settings\['x'\]: it is nested too deeply, or holds itself"):
        unisono.Run(settings={"x": endless})
    with pytest.raises(ConfigError, match="expected settings as a dictionary, got list"):
        unisono.Run(settings=[1])


def test_settings_that_json_has_no_words_for(toy, tmp_path):
    """Infinities, NaN, names that are no text and tuples are kept as they are; the next launch knows them again."""
    settings = {"x": math.inf, "y": [math.nan, -math.inf], 3: (1, 2), "z": {None: 2.5}, "long": 1 << 200}
    first, _ = toy.train(out=tmp_path, settings=settings, epochs=1)
    assert toy.train(out=tmp_path, settings=settings, epochs=1) == (first, [])
    with pytest.raises(unisono.ScoreMismatch, match="settings"):
        toy.train(out=tmp_path, settings=settings | {"x": -math.inf}, epochs=1)


class Odd:
    """An object whose state nobody could store."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"good": 1, "value": self.value}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("value", [pathlib.Path("/data"), {1, 2}, print, torch.zeros(2, dtype=torch.complex128)])
def test_state_that_cannot_be_stored_is_refused_before_step_1(toy, tmp_path, value):
    """Found before anything was trained, by name; without a directory nothing is saved, and nothing refused."""

    def train(**settings):
        with toy.run(**settings) as (run, model, _):
            run.register("odd", Odd(value))
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
                run.step(batch, lambda micro: nn.functional.cross_entropy(model(micro.x), micro.y))
            return run.fingerprint()

    with pytest.raises(ConfigError, match=r"cannot save .*registered part 'odd': state\.value.* Hint: no checkpoint"):
        train(out=tmp_path)
    assert (tmp_path / "ledger.jsonl").read_text() == ""
    assert len(train()) == 64


def test_an_optimizers_own_state(toy, tmp_path):
    """Infinite settings and tensors as learning rates are kept; what its first step adds is looked at too."""

    class Strange(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for parameter in self.state:
                self.state[parameter]["seen"] = self.defaults["seen"]

    def train(seen, out):
        with unisono.Run(seed=0, replicas=4, out=out) as run:
            model = nn.Sequential(nn.Linear(6, 4))
            optimizer = Strange(model.parameters(), lr=torch.tensor(0.1), momentum=0.5, foreach=False)
            optimizer.defaults["seen"] = seen
            optimizer.param_groups[0]["limit"] = math.inf
            model, optimizer = run.prepare(model, optimizer)
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
                run.step(batch, lambda micro: nn.functional.cross_entropy(model(micro.x), micro.y))
            group = optimizer.param_groups[0]
            return run.fingerprint(), group["limit"], float(group["lr"])

    first = train(math.inf, tmp_path / "good")
    assert train(math.inf, tmp_path / "good") == first
    assert first[1] == math.inf
    with pytest.raises(ConfigError, match=r"optimizer\.state\[0\]\.seen.*got set"):
        train({1}, tmp_path / "bad")
    assert not list(tmp_path.glob("bad/checkpoints/step*"))


def test_checkpoints_that_stay_for_good(toy, tmp_path):
    """They are saved although no checkpoint is due, stay beside the newest, and one can be gone on from."""
    policy = unisono.CheckpointPolicy(keep=1, keep_sparse="doubling")
    toy.train(out=tmp_path, epochs=2, checkpoints=policy)
    assert [step for step, _ in list_steps(tmp_path / "checkpoints")] == [10, 8, 4, 2, 1]
