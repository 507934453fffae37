"""The processes of one launch: what they cost while it lasts, and what becomes of one that cannot be started."""

import queue
import time
from pathlib import Path

import pytest

from unisono.launchers.scratch import scratch_directory
from unisono.launchers.spec import LaunchSpec, ScriptTarget
from unisono.launchers.supervision.failure import WorkerExit
from unisono.launchers.worker_group import WorkerGroup, next_event


@pytest.fixture
def group(tmp_path):
    """Two workers that end at once, one of a launch whose workers may be replaced."""
    script = tmp_path / "script.py"
    script.write_text("print('here')\n")
    spec = LaunchSpec(target=ScriptTarget(path=str(script)), workers=2, live="auto")
    with scratch_directory() as directory:
        made = WorkerGroup(spec, directory, queue.SimpleQueue())
        made.start(1)
        yield made
        made.close()


def wait_for_ends(group):
    """Take in events until all workers have ended."""
    deadline = time.monotonic() + 120
    while group.running:
        event = next_event(group._events, deadline)
        assert event is not None, group.running
        group.note(event)
    assert all(isinstance(end, WorkerExit) and end.code == 0 for end in group.exits.values())


def descriptors():
    return len([*Path("/proc/self/fd").iterdir()])


def test_workers_that_have_ended_hold_no_descriptors(group, capfd):
    """A run may lose hundreds, with others in their places; what each has told and printed stays."""
    wait_for_ends(group)
    before, deadline, lines = descriptors(), time.monotonic() + 60, []
    for rank in range(2, 5):
        group.add(rank)
        wait_for_ends(group)
    while descriptors() > before or len(lines) < 5:  # the output's thread may be behind
        assert time.monotonic() < deadline, (descriptors(), before, lines)
        lines += capfd.readouterr().out.splitlines()
        time.sleep(0.01)
    assert [group.last_reading(rank).replica for rank in group.ranks] == [-1] * 5
    assert sorted(lines) == [f"[rank {rank}] here" for rank in range(5)]


def test_one_that_could_not_be_started(group, monkeypatch):
    """There is no room for its page: nothing is left of it, and to kill it does no harm."""
    wait_for_ends(group)
    monkeypatch.setattr(group, "directory", f"{group.directory}/gone")
    with pytest.raises(FileNotFoundError):
        group.add(2)
    group.kill(2, "by its launcher")
    assert group.ranks == [0, 1]
