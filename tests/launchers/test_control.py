"""The socket by which a run is told to shrink or grow: who may, where it lies, what is left of it."""

import contextlib
import os
import queue
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from unisono.errors import ConfigError
from unisono.launchers.control import CONTROL_FILE, Control, ask


def answering(answer):
    """Return what takes a question and answers it, and the questions."""
    asked = []

    def put(question):
        asked.append(question.workers)
        question.answer(answer)
        question.answer({"twice": True})  # does nothing

    return put, asked


def test_a_question_and_its_answer(tmp_path):
    """It is its owner's alone, however long the path is, and gone with the launcher."""
    path = tmp_path.joinpath(*["a directory with a name that is long"] * 5)
    path.mkdir(parents=True)
    put, asked = answering({"workers": 2})
    with Control(put) as server:
        assert server.serve("") == server.serve(str(path)) == server.serve(str(path)) == ""
        status = (path / CONTROL_FILE).lstat()
        assert stat.S_ISSOCK(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600
        assert [ask(path, 2), ask(path, 3)] == [{"workers": 2}] * 2
    assert (asked, (path / CONTROL_FILE).exists()) == ([2, 3], False)
    server.close()
    with pytest.raises(FileNotFoundError):
        ask(path, 2)


def test_launchers_of_several_hosts(tmp_path):
    """Each has a socket of its own; the first one that answers here is asked: not one of a host that is lost."""
    hosts = {node: Control(answering({"workers": node})[0]) for node in (0, 2, 10)}
    for node, server in hosts.items():
        assert server.serve(str(tmp_path), node) == ""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "control-1.sock"))
    for node, server in hosts.items():
        assert ask(tmp_path, 2) == {"workers": node}
        server.close()
    with pytest.raises(ConnectionError):
        ask(tmp_path, 2)


def test_who_waits_is_told_of_the_end(tmp_path):
    """Also where the answer has not come yet."""
    questions = queue.SimpleQueue()
    server = Control(questions.put)
    server.serve(str(tmp_path))
    found = []
    asker = threading.Thread(target=lambda: found.append(ask(tmp_path, 2)))
    asker.start()
    questions.get(timeout=30)
    server.close()
    asker.join(30)
    assert found == [{"failed": "the run has ended before"}]


def test_what_a_dead_launcher_leaves(tmp_path):
    """A stale socket refuses; the next launch puts its own in the place, which the first one's end leaves there."""
    first, second = Control(answering({})[0]), Control(answering({"workers": 1})[0])
    first.serve(str(tmp_path))
    with socket.socket(socket.AF_UNIX) as dead:
        (tmp_path / CONTROL_FILE).unlink()
        dead.bind(str(tmp_path / CONTROL_FILE))
    with pytest.raises(ConnectionError):
        ask(tmp_path, 2)
    second.serve(str(tmp_path))
    first.close()
    assert ask(tmp_path, 2) == {"workers": 1}
    second.close()


def test_what_is_not_ours(tmp_path, monkeypatch):
    """Another user's socket is not asked, and something else than a socket neither."""
    (put, asked), own = answering({"workers": 2}), os.geteuid()
    with Control(put) as server, monkeypatch.context() as patch:
        server.serve(str(tmp_path))
        patch.setattr(os, "geteuid", lambda: own + 1)
        with pytest.raises(ConfigError, match="expected a run of this user's"):
            ask(tmp_path, 2)
    assert asked == []
    (tmp_path / CONTROL_FILE).write_text("")
    with pytest.raises(ConfigError, match="found something else"):
        ask(tmp_path, 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_somebody_else(tmp_path):
    """The mode keeps others out; where it is opened for all, the kernel still tells the launcher who has come."""
    put, asked = answering({"workers": 2})
    with tempfile.TemporaryDirectory() as folder, Control(put) as server:
        Path(folder).chmod(0o755)
        server.serve(folder)
        program = (
            "import os, socket; os.setuid(65534); s = socket.socket(socket.AF_UNIX); "
            f"s.connect('{folder}/{CONTROL_FILE}'); "
            """s.sendall(b'{"workers": 2}\\n'); print(s.recv(1000))"""
        )
        first = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        Path(folder, CONTROL_FILE).chmod(0o666)
        second = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "PermissionError" in first.stderr
    assert "only the user whose run it is" in second.stdout
    assert asked == []


def test_nonsense(tmp_path):
    """A line that asks for nothing is refused, and the launcher hears nothing of it."""
    put, asked = answering({})
    with Control(put) as server:
        server.serve(str(tmp_path))
        for line in (
            b"nonsense\n",
            b"[]\n",
            b"{}\n",
            b"\xff\n",
            b"[" * 60_000 + b"\n",
            b'{"workers": ' + b"9" * 5000 + b"}\n",
        ):
            with socket.socket(socket.AF_UNIX) as caller:
                caller.settimeout(30)
                caller.connect(str(tmp_path / CONTROL_FILE))
                caller.sendall(line)
                assert b"refused" in caller.recv(1000)
    assert asked == []


def test_many_who_say_nothing(tmp_path):
    """They take no more descriptors of the launcher than a few; whoever asks when they have gone is answered."""
    put, asked = answering({"workers": 2})
    before = len([*Path("/proc/self/fd").iterdir()])
    with Control(put) as server, contextlib.ExitStack() as stack:
        server.serve(str(tmp_path))
        callers = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(100)]
        for caller in callers:
            caller.settimeout(30)
            caller.connect(str(tmp_path / CONTROL_FILE))
        assert b"others are asking" in callers[-1].recv(1000)
        assert len([*Path("/proc/self/fd").iterdir()]) - before < len(callers) + 50
        for caller in callers:
            caller.close()
        deadline = time.monotonic() + 60
        while (answer := ask(tmp_path, 2)) != {"workers": 2}:
            assert "others are asking" in answer["refused"] and time.monotonic() < deadline
    assert asked == [2]


def test_a_place_without_sockets(tmp_path):
    """It is said, and the run goes on without."""
    server = Control(answering({})[0])
    assert server.serve(str(tmp_path / "missing")).startswith("no socket can be made in")
    server.close()
