"""One script with accelerate's import, and with ours: the same losses and weights within rounding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.public, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "shim_script.py"


def run(whose: str, folder: Path, *numbers: int, start: tuple[str, ...] = ()) -> dict:
    """Return what the script says.

    Args:
        whose: Import line.
        folder: For the state.
        numbers: Batch size, accumulation, processes, steps of the schedule.
        start: What starts it.
    """
    command = [sys.executable, *start, str(SCRIPT), whose, str(folder), *map(str, numbers)]
    env = os.environ | {"ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout[done.stdout.index("{") :])


def compare(ours: dict, theirs: dict) -> None:
    """Hold what both have come to against each other, within rounding."""
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-5)
    assert ours["lr"] == pytest.approx(theirs["lr"])
    for found, expected in zip(ours["weights"], theirs["weights"], strict=True):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_same_script(tmp_path, accumulation):
    """What accelerate's one process does with the global batch, 4 replicas do on 1 and 2 ranks."""
    theirs = run("theirs", tmp_path / "theirs", 32 // accumulation, accumulation, 1, 0)
    ours = run("ours", tmp_path / "ours", 8 // accumulation, accumulation, 4, 0)
    launched = ("-m", "unisono", "run", "-n", "2", "--devices", "cpu")
    assert run("ours", tmp_path / "again", 8 // accumulation, accumulation, 4, 0, start=launched) == ours
    compare(ours, theirs)
    assert theirs["losses"][0] > theirs["losses"][2]
    other = run("ours", tmp_path / "other", 4 // accumulation, accumulation, 4, 0)
    assert other["losses"] != pytest.approx(theirs["losses"], rel=1e-3)  # the control: another global batch


@pytest.mark.parametrize(("accumulation", "batch_size"), [(1, 7), (2, 8)])
def test_two_processes_of_theirs(tmp_path, accumulation, batch_size):
    """What two processes of accelerate's do, two replicas do: uneven ends, and a schedule that ends before the run."""
    leaving = str(Path(__file__).parent / "until_asleep.py")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", leaving)
    theirs = run("theirs", tmp_path / "theirs", batch_size, accumulation, 2, 29, start=torchrun)
    compare(run("ours", tmp_path / "ours", batch_size, accumulation, 2, 29), theirs)
