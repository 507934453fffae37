"""Whatever a launcher leaves behind when it is killed, its reaper ends and removes."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unisono.launchers.supervision.reaper import Reaper

# A launcher with one worker, which has a child of its own; both hold the write end of a pipe that the test reads.
LAUNCHER = """
import os, signal, subprocess, sys
from unisono.launchers.supervision.reaper import Reaper
reaper = Reaper(sys.argv[2:])
worker = subprocess.Popen(["/bin/sh", "-c", "sleep 300 & wait"], start_new_session=True)
reaper.watch(worker.pid)
if sys.argv[1] == "dismiss":
    reaper.dismiss()
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["kill", "dismiss"])
def test_a_killed_launcher_leaves_nothing(tmp_path, end):
    """Its workers' groups end and its directories go, full ones too; a dismissed reaper touches nothing."""
    places = [tmp_path / "launch", tmp_path / "scratch"]
    for place in places:
        (place / "run" / "checkpoints").mkdir(parents=True)
        (place / "run" / "ledger.jsonl").write_text("{}")
    command = [sys.executable, "-c", LAUNCHER, end, *map(str, places)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as launcher:
        # End of file: launcher, worker and the worker's child are gone (the reaper has an output of its own).
        assert launcher.communicate(timeout=60)[0] == b""
    assert launcher.returncode == (-signal.SIGKILL if end == "kill" else 0)
    deadline = time.monotonic() + 60
    while end == "kill" and any(place.exists() for place in places):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert all(place.exists() == (end == "dismiss") for place in places)


def test_no_process_for_a_warden(monkeypatch):
    """Where none can be started, the error is the system's and no descriptor stays open."""

    def refuse(*_args, **_settings):
        raise OSError("no processes left")

    monkeypatch.setattr("unisono.launchers.supervision.reaper.subprocess.Popen", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="no processes left"):
        Reaper([])
    assert len(list(Path("/proc/self/fd").iterdir())) == before
