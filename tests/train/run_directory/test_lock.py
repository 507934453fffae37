"""One run per directory: refused while the holder lives, taken over when it is dead, unmasked after the fact."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from unisono.errors import CheckpointError, ConfigError
from unisono.system.directory import Directory
from unisono.train.run_directory import lock as run_lock
from unisono.train.run_directory.lock import LOCK_FILE, Holder, RunLock, check_free

HOLD = """
import ctypes, os, shutil, sys, tempfile, time
from pathlib import Path
from unisono.system.directory import Directory
from unisono.train.run_directory.lock import RunLock
lock = RunLock(Directory.open(Path(sys.argv[1])))
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(60)
if "raw fork" in sys.argv and ctypes.CDLL(None).fork() == 0:  # past Python, which cannot let go of the lock then
    time.sleep(60)
if "closing fork" in sys.argv and (child := os.fork()) == 0:
    lock.release()
    os.close(os.open(sys.argv[1] + "/run.lock", os.O_RDWR))
    sys.exit()
elif "closing fork" in sys.argv:
    os.waitpid(child, 0)
if "copy" in sys.argv:
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(sys.argv[1], place, dirs_exist_ok=True)
print(lock.token, flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def holder(path, *words):
    """Another process that holds the directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), *words], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert int(process.stdout.readline()) > 0
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_refused_while_the_holder_lives_then_taken_over(tmp_path, monkeypatch):
    """A second run is refused by name; when the holder is dead, though not its forked children, it may start."""
    monkeypatch.setattr(run_lock, "_WAIT_S", 0.2)
    with holder(tmp_path, "fork") as process:
        with pytest.raises(ConfigError, match=rf"in use by process {process.pid} on .* since 2\d\d\d-") as caught:
            RunLock(Directory.open(tmp_path))
        assert "Hint: " in str(caught.value)
        process.kill()
        process.wait()
        lock = RunLock(Directory.open(tmp_path))
    assert lock.token == 2
    lock.release()


def test_a_launcher_sees_that_a_directory_is_in_use(tmp_path, monkeypatch):
    """While the holder lives. A process that has closed its run, or has died, holds nothing."""
    monkeypatch.setattr(run_lock, "_WAIT_S", 0.2)
    with Directory.open(tmp_path) as home:
        check_free(home)
        with holder(tmp_path) as process:
            with pytest.raises(ConfigError, match=rf"in use by process {process.pid} on .*choose another --out"):
                check_free(home)
            process.kill()
            process.wait()
            check_free(home)
        RunLock(home).release()  # this process lives on
        check_free(home)


def test_another_rank_goes_on_with_the_lock(tmp_path):
    """It keeps the launch's token once the holder is dead; a holder that lived after all could commit nothing."""
    with holder(tmp_path) as process:
        process.kill()
        process.wait()
    with holder(tmp_path) as process:
        process.kill()
        process.wait()
        before = Holder(**json.loads((tmp_path / LOCK_FILE).read_text()))
    with pytest.raises(CheckpointError, match="has been taken over by process"):
        RunLock(Directory.open(tmp_path), 1)  # of an earlier launch
    lock = RunLock(Directory.open(tmp_path), 2)
    lock.check()
    assert (lock.token, json.loads((tmp_path / LOCK_FILE).read_text())["pid"]) == (2, os.getpid())
    (tmp_path / LOCK_FILE).write_text(json.dumps(asdict(before)))
    with pytest.raises(CheckpointError, match="may no longer write"):
        lock.check()
    lock.release()


@pytest.mark.parametrize("habit", ["copy", "closing fork"])
def test_what_the_program_does_does_not_drop_the_lock(tmp_path, monkeypatch, habit):
    """A program that copies its run directory, or whose forked child ends, still holds it; a process's lock would fall.

    The control is that kind of lock, which is all that some kernels have.
    """
    monkeypatch.setattr(run_lock, "_WAIT_S", 0.2)
    with holder(tmp_path, habit) as process, pytest.raises(ConfigError, match=f"in use by process {process.pid}"):
        RunLock(Directory.open(tmp_path))


def test_the_process_lock_falls_when_the_file_is_read(tmp_path, monkeypatch):
    """The control of the copy: with the lock that POSIX knows, a second holder comes in; without a copy it does not."""
    monkeypatch.setattr(run_lock, "_WAIT_S", 0.2)
    old_kind = HOLD.replace("lock = RunLock", "run_lock._lock_open_file = run_lock._lock_process\nlock = RunLock")
    assert old_kind != HOLD
    monkeypatch.setitem(globals(), "HOLD", "from unisono.train.run_directory import lock as run_lock\n" + old_kind)
    with holder(tmp_path) as process, pytest.raises(ConfigError, match=f"in use by process {process.pid}"):
        RunLock(Directory.open(tmp_path))
    with holder(tmp_path, "copy"):
        RunLock(Directory.open(tmp_path)).release()


def test_a_kernel_without_locks_of_open_files(tmp_path, monkeypatch):
    """There the process's lock is taken: another process is refused all the same."""

    def unknown(*_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(run_lock.fcntl, "fcntl", unknown)
    lock = RunLock(Directory.open(tmp_path))
    with holder_refused(tmp_path):
        lock.check()
    lock.release()


def test_a_child_that_python_knows_nothing_of(tmp_path, monkeypatch):
    """The control of the forked child: one that keeps the lock's file open is told apart from a living holder."""
    monkeypatch.setattr(run_lock, "_WAIT_S", 0.2)
    with holder(tmp_path, "raw fork") as process:
        process.kill()
        process.wait()
        with pytest.raises(ConfigError, match=r"is locked, although process \d+ on .* has ended: .*Hint: find it"):
            RunLock(Directory.open(tmp_path))


def test_a_second_run_of_one_program_takes_over(tmp_path):
    """A cell of a notebook that is run again gets the directory; the first run may no longer commit there."""
    first, second = (RunLock(Directory.open(tmp_path)) for _ in range(2))
    second.check()
    with pytest.raises(CheckpointError, match="another Run of this program"):
        first.check()
    first.release()
    with holder_refused(tmp_path):
        second.check()
    second.release()


@contextlib.contextmanager
def holder_refused(path):
    """Another process that wants the directory and does not get it."""
    program = HOLD.replace("lock = RunLock", "run_lock._WAIT_S = 0.1\nlock = RunLock")
    done = subprocess.run(
        [sys.executable, "-c", "from unisono.train.run_directory import lock as run_lock\n" + program, str(path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "in use by process" in done.stderr
    yield


def test_a_dying_holder_is_waited_for(tmp_path):
    """The same command right after a SIGKILL starts, instead of being refused for the corpse."""
    with holder(tmp_path) as process:
        killer = threading.Timer(0.3, process.kill)
        killer.start()
        lock = RunLock(Directory.open(tmp_path))  # who waits no longer than `_WAIT_S` is refused
        lock.release()
        killer.join()


def check_waits(place, holding):
    """A rank of the same launch gets the lock when the process that holds it has ended."""
    killer = threading.Timer(1.0, holding.kill)
    killer.start()
    began = time.monotonic()
    lock = RunLock(Directory.open(place), 1)
    assert time.monotonic() - began > 0.9
    lock.check()
    lock.release()
    killer.join()


def test_the_lock_of_a_lost_host_is_waited_for(tmp_path, monkeypatch):
    """A file server keeps it for a while: a rank of the same launch waits, and another launch is refused at once."""
    monkeypatch.setattr(run_lock, "_WAIT_S", 0.1)
    with holder(tmp_path) as process:
        far = replace(Holder.this_process(1), host="elsewhere", pid=process.pid)
        with (tmp_path / LOCK_FILE).open("r+") as file:
            file.write(json.dumps(asdict(far)).ljust(511))
        with pytest.raises(ConfigError, match=r"in use by process .* on elsewhere"):
            RunLock(Directory.open(tmp_path))
        check_waits(tmp_path, process)


def test_a_worker_of_this_machine_that_was_left_out_is_waited_for(tmp_path, monkeypatch):
    """Its launcher ends it later: a rank of the same launch waits, and another launch is refused soon."""
    monkeypatch.setattr(run_lock, "_WAIT_S", 0.1)
    with holder(tmp_path) as process:
        with pytest.raises(ConfigError, match=r"in use by process"):
            RunLock(Directory.open(tmp_path))
        check_waits(tmp_path, process)


def test_tokens_only_grow(tmp_path):
    """Each holder's token is larger than the one before; a file that was cut by a crash starts far above."""
    tokens = []
    for _ in range(3):
        lock = RunLock(Directory.open(tmp_path))
        tokens.append(lock.token)
        lock.release()
        lock.release()
    assert tokens == [1, 2, 3]
    (tmp_path / LOCK_FILE).write_text('{"host": "h", "tok')
    lock = RunLock(Directory.open(tmp_path))
    assert lock.token > 1_700_000_000
    lock.release()


def test_who_was_replaced_may_not_commit(tmp_path):
    """After another holder has come, or the file is gone, the check fails; before, it passes."""
    lock = RunLock(Directory.open(tmp_path))
    lock.check()
    path = tmp_path / LOCK_FILE
    theirs = replace(Holder.this_process(lock.token + 1), host="elsewhere", pid=99)
    path.write_text(json.dumps(asdict(theirs)))
    with pytest.raises(CheckpointError, match="taken over by process 99 on elsewhere"):
        lock.check()
    path.unlink()
    path.write_text(json.dumps(asdict(Holder.this_process(lock.token))))
    with pytest.raises(CheckpointError, match="taken over by process 99"):
        lock.check()


def test_a_lost_lock_file_is_called_that(tmp_path):
    """Nobody has taken the directory over, but nobody can be told that it is in use: the words say which it is."""
    lock = RunLock(Directory.open(tmp_path))
    (tmp_path / LOCK_FILE).rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=rf"has lost its {LOCK_FILE}") as caught:
        lock.check()
    assert "taken over" not in str(caught.value)
    (tmp_path / "elsewhere").rename(tmp_path / LOCK_FILE)
    lock.check()
    lock.release()


@pytest.mark.parametrize("what", ["deleted", "renamed", "another in its place", "its parent renamed"])
def test_a_directory_that_is_gone_is_called_that(tmp_path, what):
    """A deleted or renamed run directory has not been taken over; where it was renamed to is said."""
    place = tmp_path / "runs" / "a"
    place.mkdir(parents=True)
    lock = RunLock(Directory.open(place))
    lock.check()
    if what == "deleted":
        shutil.rmtree(place)
        words = "has been deleted"
    elif what == "its parent renamed":
        place.parent.rename(tmp_path / "past")
        words = f"has been renamed to {tmp_path}/past/a"
    else:
        place.rename(tmp_path / "b")
        words = f"has been renamed to {tmp_path}/b"
    if what == "another in its place":
        shutil.copytree(tmp_path / "b", place)
    with pytest.raises(CheckpointError, match=f"the run directory {place} {words} while the run.*Hint: ") as caught:
        lock.check()
    assert "taken over" not in str(caught.value)
    lock.release()


def test_a_link_that_is_turned_elsewhere_does_not_move_the_run(tmp_path, monkeypatch):
    """The link that leads to the directory is followed once, and a program may change where it works."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").symlink_to("a")
    monkeypatch.chdir(tmp_path)
    lock = RunLock(Directory.open(Path("latest")))
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to("b")
    monkeypatch.chdir("/")
    lock.check()
    lock.release()


def test_without_locks_the_file_decides(tmp_path, monkeypatch):
    """On a file system without locks: a living process keeps the directory, a dead one or another boot does not."""

    def unsupported(*_):
        raise OSError(95, "not supported")

    monkeypatch.setattr(run_lock.fcntl, "lockf", unsupported)
    monkeypatch.setattr(run_lock.fcntl, "fcntl", unsupported)
    monkeypatch.setattr(run_lock, "_WAIT_S", 0.1)
    with holder(tmp_path) as process:
        with pytest.raises(ConfigError, match=f"process {process.pid}"):
            RunLock(Directory.open(tmp_path))
        content = json.loads((tmp_path / LOCK_FILE).read_text())
        for change in ({"boot_id": "another"}, {"start_ticks": content["start_ticks"] - 1}):  # a number used again
            (tmp_path / LOCK_FILE).write_text(json.dumps(content | change))
            RunLock(Directory.open(tmp_path)).release()
            (tmp_path / LOCK_FILE).write_text(json.dumps(content))


def test_links_are_not_followed(tmp_path):
    """A link in the lock's place cannot make us write into a stranger's file."""
    (tmp_path / "precious").write_text("mine")
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "precious")
    with pytest.raises(CheckpointError, match="found a symbolic link"):
        RunLock(Directory.open(tmp_path))
    assert (tmp_path / "precious").read_text() == "mine"
