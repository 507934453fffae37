"""Rows of the fault matrix that come from outside: the kernel, a debugger, another launch, the clock, strange bytes."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import job
import pytest
from evidence import SEED, finish, kill, record
from test_processes import SLOWED

from unisono.checkpoint.manifest import read_manifest
from unisono.checkpoint.store import list_steps

pytestmark = pytest.mark.slow

# Attaches to every thread of a process, as a debugger does, and holds it; "attentive" takes note of its end, which the
# kernel tells nobody else before.
DEBUGGER = """
import ctypes, os, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
for tid in map(int, os.listdir(f"/proc/{pid}/task")):
    if libc.ptrace(16, tid, None, None):  # PTRACE_ATTACH
        sys.exit(os.strerror(ctypes.get_errno()))
    os.waitpid(tid, 0x40000000)  # __WALL
print("held", flush=True)
try:
    while sys.argv[2] == "attentive":
        os.waitpid(-1, 0x40000000)
except ChildProcessError:
    pass
sys.stdin.read()
"""


@pytest.fixture
def memory_limit(tmp_path):
    """A control group (v1) whose processes get 1.5 GB together; returns the file that takes their ids."""
    own = next((line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), None)
    parent = Path("/sys/fs/cgroup/memory") / ("" if own is None else own.rpartition(":")[2].lstrip("/"))
    group = parent / f"unisono-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(1500 << 20))
        with contextlib.suppress(OSError):
            (group / "memory.memsw.limit_in_bytes").write_text(str(1500 << 20))
    except OSError as error:
        pytest.skip(f"no memory control group of version 1 to be had: {error}")
    yield group / "cgroup.procs"
    deadline = time.monotonic() + 30
    while group.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # its last processes are still ending
            group.rmdir()
        time.sleep(0.05)


def test_row_44_out_of_memory(launches, reference, memory_limit):
    """A worker that the kernel kills for want of memory: called that, and replaced."""
    memory_limit.write_text(str(os.getpid()))
    try:
        launcher = launches.start("memory@6:1", options=("--max-restarts", "2"))
    finally:
        (memory_limit.parent.parent / "cgroup.procs").write_text(str(os.getpid()))
    result = finish(launcher)
    assert result.returncode == 0, result.stderr
    assert "rank 1 of 2 was killed" in result.stderr
    assert re.search(r"out[- ]of[- ]memory", result.stderr)
    assert "no out-of-memory kill" not in result.stderr
    launches.judge(44, "out of memory", reference)


def test_row_43_a_killed_loader(launches, reference):
    """A killed data loading process ends its rank, which is replaced: no hang, the same bits."""
    result = launches.run("loader@6:1")
    assert result.returncode == 0, result.stderr
    assert "rank 1 of 2 failed with" in result.stderr
    assert launches.leftovers() == []
    launches.judge(43, "SIGKILL a data loading process", reference)


def hold(pid, how):
    """Have a debugger hold a process; returns the debugger, which lets go when its input is closed."""
    debugger = subprocess.Popen(
        [sys.executable, "-c", DEBUGGER, str(pid), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert debugger.stdout.readline() == "held\n"
    return debugger


def test_row_56_held_by_a_debugger(launches, reference):
    """A worker that a debugger holds is noticed, called that and replaced."""
    launcher = launches.start(SLOWED, options=("--max-restarts", "2", "--heartbeat", "4"))
    with contextlib.closing(Closing(hold(launches.wait_for_step(6)[1].pid, "attentive"))):
        result = finish(launcher)
    assert result.returncode == 0, result.stderr
    words = r"rank 1 has shown no sign of life for \d+ s: a debugger holds it \(state t\); it is killed"
    assert re.search(words, result.stderr)
    launches.judge(56, "held by a debugger", reference)


def test_row_56_that_nothing_ends(launches, reference):
    """A worker that does not even end after SIGKILL is reported, and none is started beside it; later it goes on."""
    launcher = launches.start(SLOWED, options=("--max-restarts", "2", "--heartbeat", "4"))
    with contextlib.closing(Closing(hold(launches.wait_for_step(6)[1].pid, "inattentive"))):
        result = finish(launcher)
    assert result.returncode == 137
    assert "rank 1 of 2 does not end, although it was killed by its launcher" in result.stderr
    assert "No restart: " in result.stderr
    assert launches.run().returncode == 0
    launches.judge(56, "a process that nothing ends", reference)


class Closing:
    """A process that ends when its input is closed."""

    def __init__(self, process):
        self.process = process

    def close(self):
        self.process.communicate()


def test_row_56_a_wait_in_the_kernel(launches, reference):
    """A worker that waits in the kernel (state D) is noticed, called that and replaced."""
    result = launches.run("kernel@6:1", options=("--heartbeat", "4"))
    assert result.returncode == 0, result.stderr
    assert re.search(r"rank 1 has shown .*: it waits in the kernel .*\(state D\).*; it is killed", result.stderr)
    launches.judge(56, "state D", reference)


def test_rows_4_35_two_lives_of_one_run(launches, reference):
    """A launch that was frozen while another took its directory over may not commit any more when it wakes up."""
    first = launches.start(SLOWED)
    readings = launches.wait_for_step(6)
    pids = [first.pid, *(reading.pid for reading in readings)]
    for pid in pids:
        kill(pid, signal.SIGSTOP)
    old = {path.name for _, path in list_steps(launches.out / "checkpoints")}
    (launches.out / "run.lock").unlink()  # as people do; a network file system forgets locks, too
    second = launches.run()
    assert second.returncode == 0, second.stderr
    for pid in pids:
        kill(pid, signal.SIGCONT)
    ended = finish(first)
    assert ended.returncode != 0
    assert "has lost its run.lock" in ended.stderr, ended.stderr
    commits = [path for _, path in list_steps(launches.out / "checkpoints")]
    assert commits
    assert {path.name for path in commits}.isdisjoint(old)
    assert len({read_manifest(path).facts.fencing_token for path in commits}) == 1
    launches.judge(35, "two lives of one run", reference)


def test_rows_49_53_clocks_and_names(launches, reference):
    """A clock that jumps by hours, another time zone, and a run directory with a hostile name change nothing."""
    launches.out = launches.folder / ("a run <script>alert(1) $(false) 'ü\u202e" + "x" * 150) / "run"
    launches.out.parent.mkdir()
    result = launches.run("clock@3:0", "clock@5:1")
    assert result.returncode == 0, result.stderr
    assert "Restart" not in result.stderr
    launches.judge(49, "wall clock and time zone", reference)
    launches.judge(53, "a hostile name", reference)


def test_row_51_killed_at_the_very_end(launches, reference):
    """A worker killed when it is about to write the result: only that is left to do, with the same bits."""
    result = launches.run("result@0:0")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("was killed by SIGKILL") == 1
    assert launches.result["finished"] is True
    assert launches.result["resumed_from_step"] == job.STEPS
    launches.judge(51, "SIGKILL before the result", reference)


def listeners(pids):
    """Return addresses on which these processes listen."""
    listing = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
    return [line.split()[3] for line in listing.splitlines() if any(f"pid={pid}," in line for pid in pids)]


def test_row_55_listeners_and_strange_bytes(launches, reference):
    """While a run is going it listens on the loopback interface only, and what strangers send there changes nothing."""
    launcher = launches.start(SLOWED)
    own = listeners({launcher.pid, *(reading.pid for reading in launches.wait_for_step(6))})
    assert [address for address in own if not address.startswith(("127.", "[::1]"))] == []
    chance = random.Random(SEED)
    for address in own:
        host, _, port = address.rpartition(":")
        for size in (1, 64, 4096):
            with (
                contextlib.suppress(OSError),
                socket.create_connection((host.strip("[]"), int(port)), timeout=5) as line,
            ):
                line.sendall(chance.randbytes(size))
    with socket.create_server(("", 0)):
        assert [address for address in listeners({os.getpid()}) if not address.startswith("127.")], "it would not show"
    result = finish(launcher)
    assert result.returncode == 0, result.stderr
    launches.judge(55, f"random bytes to {len(own)} listeners", reference)


def test_row_45_too_few_descriptors(launches):
    """Where the system has not enough descriptors for so many workers, the launch says so, and what to do."""
    result = finish(launches.start(workers=16, descriptors=24))
    assert result.returncode == 1
    assert re.search(
        r"expected to start 16 workers, got \d+: .*Too many open files.*Hint: fewer workers", result.stderr
    )
    record(45, "24 file descriptors", expected="named", seen="named")
