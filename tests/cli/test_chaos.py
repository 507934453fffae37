"""``unisono chaos``: what it refuses, what it proves, what it catches."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from unisono.cli import chaos
from unisono.cli.train import train
from unisono.experiments.chaos import Job
from unisono.experiments.fault_schedule import KINDS

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
        (("digits", "--batch-size", "0"), "expected --batch-size"),
        (("digits", "--replicas", "1"), "expected workers <= replicas, got 2 workers for 1 replica"),
        (("digits", "--strategy", "ddp", "--fault", "resize"), "the number of workers is part of the result"),
        ((JOB, "--seed", "3"), "--seed is for recipes"),
        (("digits", "--grow"), "expected --live with --grow"),
        (("digits", "--live", "--grow", "--every-meeting"), "expected --grow or --every-meeting, got both"),
        (("digits", "--kills", "0"), "expected --kills as a whole number from 1"),
    ],
)
def test_wrong_use(arguments, words):
    """It is said before anything runs, with code 2."""
    result = call(*arguments)
    assert (result.exit_code, words in result.output) == (2, True), result.output


def test_all_options_of_a_run_reach_the_runs():
    """Recipes: as `train` takes them, in its words; scripts: the launcher's, replicas as a variable."""
    options = {"strategy": "exact", "seed": 5, "bf16": True, "epochs": None, "replicas": 4, "threads": 1}
    recipe = Job("digits", (), options, {"gpus": "cpu", "witness": "1"}, {})
    command = recipe.saving_every(7).command(Path("there"), 2, "--live", "auto")
    command = command[command.index("train") :]
    with train.make_context("train", [*command[1:]]) as context:
        found = context.params
    wanted = {"recipe": "digits", "workers": "2", "out": "there", "strategy": "exact", "seed": 5, "bf16": True}
    wanted |= {"gpus": "cpu", "witness": 1.0, "checkpoint_every": 7, "live": "auto", "epochs": None, "max_restarts": 3}
    assert {name: found[name] for name in wanted} == wanted
    assert "--live off" in " ".join(recipe.command(Path("there"), 2)), "a fault is to mean a restart"
    script = Job(JOB, ("x",), {"replicas": 4, "threads": 2}, {"gpus": "cpu"}, {"A": "b"})
    assert script.saving_every(7) is script
    typed = script.command(Path("there"), 2)[3:]
    launch = ["--max-restarts", "3", "--live", "off", "--gpus", "cpu", "--threads", "2"]
    assert typed == ["run", "-n", "2", *launch, JOB, "x"]
    assert script.environment(Path("there"), 2) == {"A": "b", "UNISONO_RUN_DIR": "there", "UNISONO_REPLICAS": "4"}


def test_other_numbers_of_workers_only_where_they_change_no_bit():
    """With ddp no fault changes the number of workers; with exact and fsdp they do."""
    kinds = {name: Job("digits", (), {"strategy": name}, {}, {}).kinds(()) for name in ("exact", "fsdp", "ddp")}
    assert kinds == {
        "exact": tuple(KINDS),
        "fsdp": tuple(KINDS),
        "ddp": tuple(kind for kind in KINDS if kind != "resize"),
    }


@pytest.mark.slow
def test_live_deaths_of_a_run_file(tmp_path):
    """``--live --config``: the recipe and options of the file, and the bits of the undisturbed run."""
    lines = ("recipe = 'digits'", "limit = 200", "epochs = 2", "batch-size = 16", "replicas = 4", "out = 'kept'")
    (tmp_path / "run.toml").write_text("\n".join(lines))
    command = [
        sys.executable,
        "-m",
        "unisono",
        "chaos",
        *["--live", "--config", "run.toml", "--kills", "1", "--json", "-n", "2"],
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["equal"], told["landed"], told["replayed"]) == (True, 1, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def run_chaos(*arguments):
    command = [sys.executable, "-m", "unisono", "chaos", JOB, "-n", "2", "--replicas", "4", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=220, check=False)


@pytest.mark.slow
def test_faults_change_nothing(tmp_path):
    """Kills of workers and launcher, a stop, other numbers of workers: all land, and the bits are equal."""
    result = run_chaos(
        "--kills", "5", "--fault-seed", "11", "--json", "--out", str(tmp_path / "kept"), "--", "x", "wait!@0:0"
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
        "--kills", "1", "--fault", "kill-worker", "--fault-seed", "1", "--", "x", "wait!@0:0", "noise@0:0",
    )  # fmt: skip
    assert result.returncode == 1, result.stderr
    assert "DIFFERENT" in result.stdout
    assert "the ledgers differ from step" in result.stderr
