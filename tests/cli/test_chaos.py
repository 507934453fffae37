"""``unisono chaos``: what it refuses, what it proves, what it catches."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from unisono.cli import chaos

JOB = str(Path(__file__).parents[1] / "faults" / "job.py")


def call(*arguments):
    return CliRunner().invoke(chaos.chaos, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("digits", "--", "x"), "takes no arguments"),
        ((JOB, "--epochs", "3"), "--epochs is for recipes"),
        (("digits", "--out", "."), "expected a new directory for --out"),
        (("digits", "--fault", "flood"), "Invalid value for '--fault'"),
        (("digits", "--live", "--fault", "stop"), "expected --live or --fault, got both (--fault stop)"),
        (("digits", "--kills", "0"), "expected --kills as a whole number from 1"),
    ],
)
def test_wrong_use(arguments, words):
    """It is said before anything runs, with code 2."""
    result = call(*arguments)
    assert (result.exit_code, words in result.output) == (2, True), result.output


def run_chaos(*arguments):
    command = [sys.executable, "-m", "unisono", "chaos", JOB, "-n", "2", "--replicas", "4", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=220, check=False)


@pytest.mark.slow
def test_faults_change_nothing(tmp_path):
    """Kills of workers and launcher, a stop, other numbers of workers: all land, and the bits are equal."""
    result = run_chaos(
        "--kills", "5", "--seed", "11", "--json", "--out", str(tmp_path / "kept"), "--", "x", "wait!@0:0"
    )
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["equal"]
    assert told["landed"] == len(told["faults"]) == 5
    assert told["reference"] == told["disturbed"]
    assert len({fault["fault"]["kind"] for fault in told["faults"]}) >= 3
    assert all(fault["step"] >= fault["fault"]["step"] and fault["phase"] for fault in told["faults"])
    assert (tmp_path / "kept" / "disturbed" / "result.json").exists()


@pytest.mark.slow
def test_a_result_that_depends_on_restarts_is_caught():
    """Control: a script with a random stream that no checkpoint knows is found out, with code 1."""
    result = run_chaos(
        "--kills", "1", "--fault", "kill-worker", "--seed", "1", "--", "x", "wait!@0:0", "noise@0:0",
    )  # fmt: skip
    assert result.returncode == 1, result.stderr
    assert "DIFFERENT" in result.stderr
    assert "the ledgers part at step" in result.stderr
