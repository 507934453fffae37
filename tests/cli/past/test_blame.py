"""``unisono blame`` ranks the samples of past steps, and finds the one that was spoilt."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ranks import once
from unisono.cli.main import unisono as command
from unisono.data.loader import sampler_of

PROGRAM = """
import torch, unisono
from torch.nn import functional as F
run = unisono.Run(seed=0, replicas=4, out="run")
model = torch.nn.Linear(16, 3)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
draws = torch.Generator().manual_seed(0)
x = torch.rand(60, 1, 4, 4, generator=draws)
y = x.flatten(1)[:, :3].argmax(1)
x[41] *= 10
y[17] = (y[17] + 1) % 3
for batch in run.steps(run.loader(unisono.ArrayDataset(x, y), batch_size=20), epochs=30):
    run.step(batch, lambda micro: F.cross_entropy(model(micro.x.flatten(1)), micro.y))
run.close()
"""


def call(*arguments):
    done = CliRunner().invoke(command, ["blame", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


@once
def trained(folder):
    (folder / "train.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "train.py"], cwd=folder, check=True)
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("blame"))


@pytest.mark.slow
def test_an_epoch(run):
    """The spoilt samples come first in the last epoch; every step of it is compared; a picture is shown."""
    code, text, error = call(run, "--epoch", 30, "--top", 3, "--show", 1)
    assert code == 0, error
    lines = text.splitlines()
    assert lines[0].endswith("are the same as in the ledger, to the last bit")
    assert lines[2].split() == ["step", "sample", "replica", "loss", "gradient", "change", "cosine", "scale"]
    assert lines[3].split()[1] == "41"
    assert lines[4].split()[1] == "17"
    assert max(map(len, lines)) <= 80
    at = next(number for number, line in enumerate(lines) if line.startswith("sample 41: "))
    assert [len(line) for line in lines[at + 1 : at + 5]] == [10] * 4


@pytest.mark.slow
def test_without_a_sample(run):
    """The step is computed without it; what comes of it is what was foretold, for a model without dropout."""
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    samples = sampler_of([0] * 60, 20, 4, seed=0, shuffle=True).batch(len(lines))
    code, text, error = call(run, "--json", "--top", 0, "--without-sample", samples[0])
    assert code == 0, error
    found = json.loads(text)
    [step] = found["steps"]
    [foretold] = [one["change"] for one in found["samples"] if one["index"] == samples[0]]
    assert [one["index"] for one in found["samples"]] != samples.tolist()
    assert {one["index"] for one in found["samples"]} == {*samples.tolist()}
    assert step["agreement"] == pytest.approx(1, abs=1e-4)
    assert step["without"]["change"] == pytest.approx(foretold, rel=1e-3)
    assert step["without"]["loss"] != step["loss"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--epoch", 31], "expected --epoch as one of those in"),
        (["--epoch", 1, "--step", 2], "expected --step or --epoch, got both"),
        (["--by", "name"], "'name' is not one of"),
        (["--workers", 2], "by one process"),
    ],
)
def test_wrong_usage_is_one_line(run, arguments, told):
    """An epoch that is not there, both, another order, several processes: code 2, nothing computed."""
    code, text, error = call(run, *arguments)
    assert (code, text) == (2, "")
    assert told in error
    assert "computing" not in error


def test_an_epoch_of_what_is_no_run(tmp_path):
    """A file, a directory that is not there: one line, as without an epoch."""
    (tmp_path / "file").touch()
    for place, told in ((tmp_path / "file", "is a file"), (tmp_path / "none", "does not exist")):
        code, text, error = call(place, "--epoch", 1)
        assert (code, text) == (2, "")
        assert f"expected a run directory, got {str(place)!r}, which {told}." in error


def test_other_strategies(run, tmp_path):
    """Only exact is looked at, and that is said."""
    score = json.loads((run / "score.json").read_text())
    for name in ("ledger.jsonl", "program.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    (tmp_path / "score.json").write_text(json.dumps(score | {"strategy": {"name": "ring"}}))
    code, _, error = call(tmp_path, "--step", 1)
    assert code == 2
    assert "expected a run with the strategy exact, got ring" in error
