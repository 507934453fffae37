"""A disturbed run that stands still is told, and not waited for without end."""

import os
import sys

import pytest

from unisono.errors import LaunchError
from unisono.experiments.fault_schedule import Fault
from unisono.experiments.injector import Injector


def injector(tmp_path, program, longest_s):
    command = [sys.executable, "-c", f"import time; {program}"]
    return Injector(lambda workers: command, os.environ, tmp_path, 1, longest_s)


def test_a_run_that_stands_still(tmp_path):
    """It comes to no step, and does not end: said; the control ends."""
    hangs = injector(tmp_path, "time.sleep(600)", 0.3)
    hangs.start()
    try:
        with pytest.raises(LaunchError, match=r"no worker has done its next step within 0\.3 s"):
            hangs.inject(Fault(number=1, kind="kill-worker", step=1, rank=0, workers=1, hold_s=0.0))
        with pytest.raises(LaunchError, match=r"the launcher has not ended within 0\.3 s"):
            hangs.finish()
    finally:
        hangs.close()
    ends = injector(tmp_path / "other", "raise SystemExit(3)", 60.0)
    (tmp_path / "other").mkdir()
    ends.start()
    assert ends.finish() == 3
