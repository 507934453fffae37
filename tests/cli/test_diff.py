"""``unisono diff`` ends with 0 only for equal runs, and says where others part."""

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional as F

import unisono as package
from unisono.cli.main import unisono


def run_job(out, *, seed=0, detail=False):
    """Train three steps."""
    with package.Run(seed=seed, replicas=2, out=out, detail=detail) as run:
        model = nn.Linear(3, 2)
        model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
        for batch in run.steps(run.loader(package.ArrayDataset(x, torch.arange(12) % 2), batch_size=4), epochs=1):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    return str(out)


def diff(*arguments):
    return CliRunner().invoke(unisono, ["diff", *arguments])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [run_job(folder / "a"), run_job(folder / "b"), run_job(folder / "c", seed=1)]


def test_equal(runs):
    """Code 0 and one word, where it can be searched."""
    done = diff(runs[0], runs[1])
    assert done.exit_code == 0, done.output
    assert (done.stdout, done.stderr) == ("equal\n", "")
    assert diff(runs[0], runs[1], "-q").stdout == "equal\n"


def test_different(runs):
    """Code 1; score, first step, what was first, both fingerprints, and how to know more."""
    done = diff(runs[0], runs[2])
    assert done.exit_code == 1
    assert "score        seed: 0 -> 1" in done.stdout
    assert "first step   1" in done.stdout
    assert "first        weights" in done.stdout
    assert "fingerprints" in done.stdout
    assert "--detail" in done.stderr
    assert done.stdout.splitlines()[-1] == "DIFFERENT"


def test_json(runs):
    """Machines get one object with everything."""
    done = diff(runs[0], runs[2], "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["equal"], found["step"], found["first"]) == (False, 1, "weights")
    same = diff(runs[0], runs[1], "--json")
    assert (json.loads(same.stdout)["equal"], same.stderr) == (True, "")


def test_no_run_is_wrong_usage(runs, tmp_path):
    """Code 2 and the way out."""
    done = diff(runs[0], str(tmp_path))
    assert done.exit_code == 2
    assert "expected a run directory, got" in done.output
