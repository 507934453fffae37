"""One run per directory: refused while the holder lives, taken over when it is dead, unmasked after the fact."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace

import pytest

from unisono.directory import Directory
from unisono.errors import CheckpointError, ConfigError
from unisono.train import run_lock
from unisono.train.run_lock import LOCK_FILE, Holder, RunLock

HOLD = """
import sys, time
from pathlib import Path
from unisono.directory import Directory
from unisono.train.run_lock import RunLock
lock = RunLock(Directory.open(Path(sys.argv[1])))
if "fork" in sys.argv:
    import os
    if os.fork() == 0:
        time.sleep(60)
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


def test_a_dying_holder_is_waited_for(tmp_path):
    """The same command right after a SIGKILL starts, instead of being refused for the corpse."""
    with holder(tmp_path) as process:
        killer = threading.Timer(0.3, process.kill)
        killer.start()
        lock = RunLock(Directory.open(tmp_path))  # who waits no longer than `_WAIT_S` is refused
        lock.release()
        killer.join()


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
    with pytest.raises(CheckpointError, match="taken over"):
        lock.check()


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
    with pytest.raises(OSError, match="symbolic"):
        RunLock(Directory.open(tmp_path))
    assert (tmp_path / "precious").read_text() == "mine"
