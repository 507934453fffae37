"""One script with Lightning Fabric's import, and with ours: the same losses and weights within rounding."""

import functools

import pytest
import torch

from public.compared import OURS, TORCHRUN, compare
from public.compared import run as run_script

pytestmark = [pytest.mark.public, pytest.mark.timeout(600)]


run = functools.partial(run_script, "fabric_script.py")


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
