"""What a loop of the program's own records: one line a step, the same after a kill and on any number of workers."""

import json
import math
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

import ranks
import unisono
from forks import run_forked
from train import recording_programs
from unisono.errors import ConfigError


def lines_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def loss_of(model):
    return lambda micro: F.cross_entropy(model(micro.x), micro.y)


def pair_of(model):
    return lambda micro: (model(micro.x), micro.y)


def test_a_loop_records(toy, tmp_path):
    """Values of a step, in several calls and kinds, and an evaluation are one line; the result has the last ones."""
    with toy.run(out=tmp_path) as (run, model, optimizer):
        run.record(early=1.0)
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
            loss = run.step(batch, loss_of(model))
            run.record({"my_loss": loss}, lr=optimizer.param_groups[0]["lr"], batch=torch.tensor(batch.step))
            if batch.step % 5 == 0:
                found = run.evaluate(toy.data, pair_of(model), {"accuracy": unisono.Accuracy()})
        after = run.evaluate(toy.data, pair_of(model), {"accuracy": unisono.Accuracy()}, name="late")
        lines = lines_of(tmp_path)  # before the run is closed
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert [line["epoch"] for line in lines] == [0] * 5 + [1] * 5
    ledger = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [line["values"]["my_loss"].hex() for line in lines] == [line["loss"] for line in ledger]
    assert [list(line["values"]) for line in lines[3:5]] == [
        ["my_loss", "lr", "batch"],
        ["my_loss", "lr", "batch", "accuracy"],
    ]
    assert (
        lines[9]["values"]["accuracy"] == lines[9]["values"]["late_accuracy"] == found["accuracy"] == after["accuracy"]
    )
    assert "early" not in str(lines)
    metrics = json.loads((tmp_path / "result.json").read_text())["metrics"]
    assert metrics == {"early": 1.0, **lines[9]["values"]}


def test_evaluations_of_several_sets(toy, tmp_path):
    """Two of one name after one step are told, once; a name keeps them apart, and None records nothing."""
    half = unisono.ArrayDataset(toy.x[:9], toy.y[:9])
    with toy.run(out=tmp_path) as (run, model, _):

        def ask(data, **how):
            return run.evaluate(data, pair_of(model), {"accuracy": unisono.Accuracy()}, **how)["accuracy"]

        ask(toy.data)  # the run has not begun
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            run.step(batch, loss_of(model))
            whole, part = ask(toy.data), ask(half, name="train")
            ask(half, name=None)
            ask(toy.data, part=9)
            ask(toy.data)
        assert whole != part
        with pytest.warns(
            UserWarning, match=r"'accuracy' twice after one step, as .*: the first is recorded. Hint: name='train'"
        ) as told:
            ask(half)
            ask(half)
    assert len(told) == 1
    assert lines_of(tmp_path)[4]["values"].items() >= {"accuracy": whole, "train_accuracy": part}.items()
    assert list(lines_of(tmp_path)[4]["values"]) == ["accuracy", "train_accuracy", "part_accuracy"]


def test_what_is_no_number(toy):
    """It is refused where it is recorded, with its shape; so are names that are no text."""
    with toy.run() as (run, _, _):
        with pytest.raises(
            ConfigError, match=r"expected numbers as metrics, got metrics\['loss'\] as Tensor of shape \(2,\)"
        ):
            run.record(loss=torch.zeros(2))
        with pytest.raises(ConfigError, match=r"got metrics\[3\] as float"):
            run.record({3: 1.0})
        with pytest.raises(ConfigError, match=r"Hint: run.record\(\{'accuracy': 0.9\}\)"):
            run.record(0.5)


@pytest.mark.parametrize(
    ("predict", "metrics", "name", "said"),
    [
        (
            "model",
            {},
            "",
            r"got a model \(Sequential\). Hint: run.evaluate\(test_set, lambda micro: \(model\(micro.x\), micro.y\)",
        ),
        (None, {}, "", r"expected a function .* got NoneType"),
        (len, [unisono.Accuracy()], "", r"expected metrics by name, got list. Hint: \{'accuracy'"),
        (len, {}, True, r"expected name as text, or None .* got True"),
    ],
)
def test_how_others_evaluate(toy, predict, metrics, name, said):
    """A model, metrics in a list: the line to write, before anything is computed."""
    with toy.run() as (run, model, _), pytest.raises(ConfigError, match=said):
        run.evaluate(toy.data, model if predict == "model" else predict, metrics, name=name)


def played(out, *how):
    """Return the exit code of a process that records, and what it said."""
    ended = subprocess.run(
        [sys.executable, recording_programs.__file__, str(out), *how], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return ended.returncode, ended.stderr


@pytest.mark.slow
def test_killed_at_any_step(tmp_path):
    """SIGKILL after checkpoints (of steps 3, 6 and 9): the same bytes as undisturbed."""
    assert played(tmp_path / "whole") == (0, "")
    whole = (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert [line["step"] for line in lines_of(tmp_path / "whole")] == [0, *range(1, 11)]
    out = tmp_path / "killed"
    for step in (4, 10):
        code, said = played(out, f"kill={step}")
        assert code == -signal.SIGKILL, said
    for _ in range(2):  # then it is complete: its evaluation after the loop is made once more
        run_forked(recording_programs.play, 1, str(out))
        assert (out / "metrics.jsonl").read_bytes() == whole


@pytest.mark.slow
def test_two_workers_write_the_same(tmp_path):
    """Bytes of one and of two processes are equal; what differs by rank is the leader's."""
    ranks.run_threads(recording_programs.play, 1, str(tmp_path / "1"))
    run_forked(recording_programs.play, 2, str(tmp_path / "2"))
    one, two = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in "12")
    assert one == two
    assert {line["values"].get("rank", 0) for line in lines_of(tmp_path / "2")} == {0}
    assert not math.isnan(lines_of(tmp_path / "2")[-1]["values"]["end_accuracy"])
