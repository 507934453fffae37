"""One script with Lightning Fabric's import, and with ours: the same losses and weights within rounding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.public, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
SCRIPT = HERE / "fabric_script.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE / "until_asleep.py"))
OURS = ("-m", "unisono", "run", "-n", "2", "--devices", "cpu")


def run(whose: str, file: Path, *numbers: int, start: tuple[str, ...] = ()) -> dict:
    """Return what the script says.

    Args:
        whose: Import line.
        file: For the state.
        numbers: Batch size, accumulation, processes.
        start: What starts it.
    """
    command = [sys.executable, *start, str(SCRIPT), whose, str(file), *map(str, numbers)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout[done.stdout.index('{"losses') :].splitlines()[0])


def compare(ours: dict, theirs: dict) -> None:
    """Hold what both have come to against each other, within rounding."""
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-5)
    assert ours["lr"] == pytest.approx(theirs["lr"])
    for found, expected in zip(ours["weights"], theirs["weights"], strict=True):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("batch_size", "accumulation"), [(7, 1), (8, 2)])
def test_two_processes_of_theirs(tmp_path, batch_size, accumulation):
    """What two processes of Fabric's do beside torchrun, two replicas do on one worker and on two."""
    theirs = run("theirs", tmp_path / "theirs.ckpt", batch_size, accumulation, 2, start=TORCHRUN)
    ours = run("ours", tmp_path / "ours.ckpt", batch_size, accumulation, 2)
    assert run("ours", tmp_path / "again.ckpt", batch_size, accumulation, 2, start=OURS) == ours
    assert ours["turns"] == theirs["turns"]
    compare(ours, theirs)
    assert theirs["losses"][0] > theirs["losses"][2]


def test_one_process_of_theirs_with_the_whole_batch(tmp_path):
    """Four replicas are one process of Fabric's with the batch of all; another batch is the control.

    The files that both have written are alike: Fabric's names and shapes, and nothing that is not plain.
    """
    theirs = run("theirs", tmp_path / "theirs.ckpt", 32, 1, 1)
    ours = run("ours", tmp_path / "ours.ckpt", 8, 1, 4)
    compare(ours, theirs)
    other = run("ours", tmp_path / "other.ckpt", 4, 1, 4)
    assert other["losses"] != pytest.approx(theirs["losses"], rel=1e-3)
    saved = [torch.load(tmp_path / f"{whose}.ckpt", weights_only=True) for whose in ("ours", "theirs")]
    assert saved[0].keys() == {*saved[1], "unisono"}
    assert saved[0]["model"].keys() == saved[1]["model"].keys()
    assert saved[0]["optimizer"]["param_groups"][0].keys() == saved[1]["optimizer"]["param_groups"][0].keys()
