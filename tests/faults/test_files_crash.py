"""Rows 14, 16, 24, 25: a crash or an error at every system call of a save leaves the old or the new state."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SERVER = Path(__file__).with_name("crash_server.py")
WRITES = ["openat", "write", "fsync", "renameat", "mkdirat", "unlinkat", "close"]

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace (apt-get install strace)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to attach strace"),
]


def sweep(root, fault, syscalls, *, writer="write", stride=1):
    """Return the points tried for each system call, and the violations."""
    command = [sys.executable, "-W", "ignore", str(SERVER), str(root), writer, fault, str(stride), *syscalls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    print(f"{fault} at {sum(told['points'].values())} points: {told['points']}")
    return told["points"], told["violations"]


def test_a_kill_at_some_system_calls(tmp_path):
    """A sample of the sweep below: old or new, hash-equal to the undisturbed run, and the next save works."""
    points, violations = sweep(tmp_path, "SIGKILL", ["write", "fsync", "renameat", "unlinkat"], stride=4)
    assert violations == []
    assert sum(points.values()) >= 5


@pytest.mark.slow
def test_a_kill_at_every_system_call(tmp_path):
    """Row 14 and 16: killed at each system call of a save, collecting included: old or new, never a third state."""
    points, violations = sweep(tmp_path, "SIGKILL", WRITES)
    assert violations == []
    assert sum(points.values()) >= 40
    assert min(points[name] for name in ("openat", "write", "fsync", "renameat", "mkdirat", "unlinkat")) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
def test_an_error_at_every_system_call(tmp_path, fault):
    """Rows 24, 25: a full disk or a failing one at each call: refused with one error, the older ones intact."""
    points, violations = sweep(tmp_path, fault, ["openat", "write", "fsync", "renameat", "mkdirat", "unlinkat"])
    assert violations == []
    assert sum(points.values()) >= 25


def test_a_careless_writer_is_caught(tmp_path):
    """The control: a writer that removes first, writes in place and the manifest first, fails most points."""
    points, violations = sweep(tmp_path, "SIGKILL", ["write"], writer="careless")
    assert len(violations) >= min(3, points["write"])
