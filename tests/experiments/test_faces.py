"""Every experiment can be called from Python: it returns plain values, prints nothing, and says what it is doing."""

import json
import os
import shutil
from pathlib import Path

import pytest

from unisono.data.sets.digits import load_digits
from unisono.errors import ConfigError
from unisono.experiments import tune as tuning
from unisono.experiments.chaos import chaos
from unisono.experiments.collectives import measure_collectives
from unisono.experiments.forecast import forecast
from unisono.experiments.links import compare_links
from unisono.experiments.past.replay import rehearse, replay
from unisono.experiments.scaling import FILES, measure_scaling
from unisono.experiments.strategies import compare_strategies
from unisono.experiments.verify import verify
from unisono.recipes.catalog import Options
from unisono.recipes.digits import train

SMALL = {"limit": 256, "batch_size": 64, "epochs": 1}


@pytest.fixture
def told(capfd):
    """Lines of progress; nothing may have been printed in the end (workers in this process tell of their epochs)."""
    load_digits()
    lines: list[str] = []
    yield lines
    assert capfd.readouterr().out == ""


def test_verify(here, told):
    """Equal runs are equal, with a line before each; one run has nothing to be compared with."""
    found = verify("digits", workers=(1, 1), tell=told.append, **SMALL)
    assert (found.equal, found.parted) == (True, [])
    assert [trial["steps"] for trial in found.trials] == [4, 4]
    assert len({trial["fingerprint"] for trial in found.trials}) == 1
    assert told == ["[1/2] digits on 1 worker ...", "[2/2] digits on 1 worker ..."]
    with pytest.raises(ConfigError, match="at least two runs"):
        verify("digits", workers=(1,))


def test_measure_scaling(here, told, tmp_path):
    """A study, kept only where a directory is named."""
    found = measure_scaling("digits", workers=(1,), repeat=2, steps=4, warmup=1, tell=told.append, **SMALL)
    assert [trial.steps for trial in found.trials] == [3, 3]
    assert found.agrees
    assert len(told) == 2
    out = tmp_path / "out"
    measure_scaling("digits", workers=(1,), repeat=1, steps=4, warmup=1, out=str(out), **SMALL)
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    with pytest.raises(ConfigError, match=r"--warmup \+ 2"):
        measure_scaling("digits", steps=3, warmup=2)


def test_compare_strategies(here, told):
    """A row for each; an unknown name is refused before anything runs."""
    rows = compare_strategies("digits", workers=1, strategies=["exact", "ddp"], tell=told.append, **SMALL)
    assert [row["strategy"] for row in rows] == ["exact", "ddp"]
    assert [row["replicas"] for row in rows] == [8, 1]
    assert all(row["samples_per_s"] > 0 and row["steps"] == 4 for row in rows)
    with pytest.raises(ConfigError, match="ddp"):
        compare_strategies("digits", strategies=["exact", "dpd"], tell=told.append)
    assert len(told) == 2


def test_compare_links(here, told):
    """The exact step is always measured."""
    found = compare_links("digits", ["ddp"], workers=1, repeat=2, tell=told.append, limit=256, epochs=1)
    assert {name: len(rates) for name, rates in found["rates"].items()} == {"exact": 2, "ddp": 2}
    assert told == [
        f"run {turn} of 2: {name} ..." for turn, name in ((1, "exact"), (1, "ddp"), (2, "ddp"), (2, "exact"))
    ]


def test_tune(here, told, monkeypatch):
    """On one core there is one way to fill it; the command is what to type."""
    monkeypatch.setattr(tuning, "usable_cores", lambda: 1)
    how = {"repeat": 1, "steps": 4, "warmup": 1, "loaders": [0], "launch": {"devices": ()}}
    found = tuning.tune("digits", tell=told.append, **how, **SMALL)
    assert [stage["what"] for stage in found["stages"]] == ["workers and threads", "loader processes"]
    assert found["command"] == "unisono train digits --workers 1 --threads 1 --num-workers 0"


def test_rehearse(here, told, tmp_path):
    """The step after a checkpoint, on a copy; where there is none, nothing is run."""
    options = {"recipe": "digits", "model": "cnn", "epochs": 2, "batch_size": 64, "replicas": 4, "limit": 150}
    train(Options(**options, threads=1, out=str(tmp_path / "run")))
    found = rehearse(str(tmp_path / "run"), tell=told.append)
    assert (found.step, found.differing) == (4, [])
    assert told == [f"running step 4 from {found.checkpoint} ..."]
    again = replay(str(tmp_path / "run"), step=5, tell=told.append)
    assert (again.start, again.step, again.first_other) == (3, 5, None)
    assert told[1] == f"computing 2 steps, 4 to 5, from {found.checkpoint}, by the recipe digits ..."
    ledger = tmp_path / "run" / "ledger.jsonl"
    *kept, last = map(json.loads, ledger.read_text().splitlines()[:5])
    told_less = {name: value for name, value in last.items() if name != "gradient"}
    ledger.write_text("".join(json.dumps(line) + "\n" for line in (*kept, told_less)))
    assert replay(str(tmp_path / "run"), step=5).differing == ["gradient"], "a line that says less is another"
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(ConfigError, match="a directory without checkpoints"):
        rehearse(str(tmp_path / "run"))


def test_forecast(told):
    """Times as text or in seconds; a wrong name is refused."""
    job = {"parameters": 7e9, "batch_size": 1024}
    found = forecast(ranks=[1, 8], sample_time="900ms", inside=450e9, tell=told.append, **job)
    assert found == forecast(ranks=[1, 8], sample_time=0.9, inside="450GB/s", **job)
    assert [row["ranks"] for row in found["forecasts"]] == [1, 8]
    with pytest.raises(ConfigError, match="got 'sampletime'"):
        forecast(sampletime="1s")


@pytest.mark.slow
def test_measure_collectives(told):
    """Real ranks, one collective: each transport has a row."""
    found = measure_collectives([2], [4096], ["all_reduce"], repeat=3, tell=told.append)
    assert {row["transport"] for row in found["rows"] if row["collective"] == "all_reduce"} == {"shm", "gloo"}
    assert told[0].startswith("measuring 2 ranks")


@pytest.mark.slow
def test_chaos(told, tmp_path):
    """Real processes: two workers are killed, and the bits are equal."""
    job = str(Path(__file__).parents[1] / "faults" / "job.py")
    how = {"kills": 2, "kinds": ["kill-worker"], "fault_seed": 3, "replicas": 4, "out": str(tmp_path / "kept")}
    found = chaos(job, ("x", "wait!@0:0"), env=os.environ, tell=told.append, **how)
    assert (found.equal, found.exit_code, found.landed) == (True, 0, 2)
    assert found.reference == found.disturbed
    assert len(told) == 4
