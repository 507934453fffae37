"""A script run with another library's import line, and with ours: what it says, and the same within rounding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

LEAVING = str(Path(__file__).with_name("until_asleep.py"))
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", LEAVING)
OURS = ("-m", "unisono", "run", "-n", "2", "--devices", "cpu")


def run(script: str, whose: str, place: Path, *numbers: int, start: tuple[str, ...] = ()) -> dict:
    """Return what a script beside this file says.

    Args:
        script: Its name.
        whose: Import line.
        place: For the state.
        numbers: Its own arguments.
        start: What starts it.
    """
    command = [sys.executable, *start, str(Path(__file__).with_name(script)), whose, str(place), *map(str, numbers)]
    env = os.environ | {"ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout[done.stdout.index('{"losses') :].splitlines()[0])


def compare(ours: dict, theirs: dict) -> None:
    """Hold what both have come to against each other, within rounding."""
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-5)
    assert ours["lr"] == pytest.approx(theirs["lr"])
    for found, expected in zip(ours["weights"], theirs["weights"], strict=True):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-5)
