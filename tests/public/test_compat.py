"""One script with accelerate's import, and with ours: the same losses and weights within rounding."""

import functools

import pytest

from public.compared import OURS, TORCHRUN, compare
from public.compared import run as run_script

pytestmark = [pytest.mark.public, pytest.mark.timeout(600)]

run = functools.partial(run_script, "shim_script.py")


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_same_script(tmp_path, accumulation):
    """What accelerate's one process does with the global batch, 4 replicas do on 1 and 2 ranks."""
    theirs = run("theirs", tmp_path / "theirs", 32 // accumulation, accumulation, 1, 0)
    ours = run("ours", tmp_path / "ours", 8 // accumulation, accumulation, 4, 0)
    assert run("ours", tmp_path / "again", 8 // accumulation, accumulation, 4, 0, start=OURS) == ours
    compare(ours, theirs)
    assert theirs["losses"][0] > theirs["losses"][2]
    other = run("ours", tmp_path / "other", 4 // accumulation, accumulation, 4, 0)
    assert other["losses"] != pytest.approx(theirs["losses"], rel=1e-3)  # the control: another global batch


@pytest.mark.parametrize(("accumulation", "batch_size"), [(1, 7), (2, 8)])
def test_two_processes_of_theirs(tmp_path, accumulation, batch_size):
    """What two processes of accelerate's do, two replicas do: uneven ends, and a schedule that ends before the run."""
    theirs = run("theirs", tmp_path / "theirs", batch_size, accumulation, 2, 29, start=TORCHRUN)
    compare(run("ours", tmp_path / "ours", batch_size, accumulation, 2, 29), theirs)
