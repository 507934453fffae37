"""``unisono watch``: in a pipe one look, in a terminal until the run has ended, or a page."""

import contextlib
import fcntl
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading

import pytest
from click.testing import CliRunner

from report.made_runs import make_run
from unisono.cli.watch import watch

COMMAND = [sys.executable, "-m", "unisono", "watch"]


def test_one_look_in_a_pipe(tmp_path):
    """Without a terminal it prints once and ends; --json has an entry for each run."""
    path = make_run(tmp_path / "run")
    result = CliRunner().invoke(watch, [str(path)])
    assert (result.exit_code, "run finished" in result.output) == (0, True)
    result = CliRunner().invoke(watch, [str(path), str(path), "--json"])
    assert [run["step"] for run in json.loads(result.output)] == [60, 60]


def test_a_folder_of_runs(tmp_path):
    """All runs in it are shown side by side, no deeper one, and how many there are is said."""
    for name in ("b", "a", "b/deeper", "deep/er/run"):
        make_run(tmp_path / "runs" / name)
    (tmp_path / "runs" / "notes.txt").touch()
    result = CliRunner().invoke(watch, [str(tmp_path / "runs"), str(make_run(tmp_path / "c")), "--json"])
    assert [run["run"] for run in json.loads(result.stdout)] == [
        str(tmp_path / name) for name in ("runs/a", "runs/b", "c")
    ]
    assert result.stderr == f"{tmp_path / 'runs'} holds 2 runs\n"
    result = CliRunner().invoke(watch, [str(tmp_path / "runs")])
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:3]] == [["a", "finished"], ["b", "finished"]]


def test_a_folder_with_a_damaged_run(tmp_path):
    """The others are shown, and why it is not; where there is no other that is the error."""
    bad, good = (make_run(tmp_path / "runs" / name) for name in ("bad", "good"))
    (bad / "score.json").write_text("{")
    result = CliRunner().invoke(watch, [str(tmp_path / "runs"), "--json"])
    assert [run["run"] for run in json.loads(result.stdout)] == [str(good)]
    assert f"{bad} is not shown: " in result.stderr and "Hint: put back a copy of it" in result.stderr
    (good / "score.json").write_text("{")
    assert CliRunner().invoke(watch, [str(tmp_path / "runs")]).exit_code == 2


def test_the_page_of_a_run_in_either_order(tmp_path):
    """What follows ``--web`` is its port where it is a number, and else a run."""
    for typed, port in (("--web run", 0), ("run --web", 0), ("--web 8080 run", 8080), ("run --web=8080", 8080)):
        with watch.make_context("watch", typed.split()) as context:
            assert (context.params["runs"], context.params["web"]) == (("run",), port), typed


def test_wrong_words(tmp_path):
    """No run, no such port, no time between looks: one line and code 2."""
    path, empty = str(make_run(tmp_path / "run")), tmp_path / "empty"
    empty.mkdir()
    (empty / "note").touch()
    for arguments, told in (
        ([str(empty), "--once"], "expected a run directory"), ([path, "--web", "70000"], "70000"),
        ([path, "--every", "0"], "0"), ([], "RUN"), ([f"{path}-none", "--web", "--once"], "which does not exist"),
    ):  # fmt: skip
        result = CliRunner().invoke(watch, arguments)
        assert (result.exit_code, told in result.output) == (2, True), result.output


def test_half_a_line(tmp_path):
    """A ledger line that is being written is not there yet; a taken port is told in one line, with code 2."""
    path = make_run(tmp_path / "run")
    with (path / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"step": 61, "ep')
    result = CliRunner().invoke(watch, [str(path), "--json"])
    assert (result.exit_code, json.loads(result.output)[0]["step"]) == (0, 60)
    result = CliRunner().invoke(watch, [str(path), "--once"])
    assert (result.exit_code, "step 60" in result.output, "damaged" in result.output) == (0, True, False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(watch, [str(path), "--web", str(port)])
    assert (result.exit_code, result.output.count("\n"), f"{port}" in result.output) == (2, 1, True), result.output


def test_a_terminal(tmp_path):
    """It draws until the run has ended."""
    path = make_run(tmp_path / "run")
    ours, theirs = pty.openpty()
    done = subprocess.run([*COMMAND, str(path)], stdout=theirs, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(theirs)
    told = os.read(ours, 1 << 16).decode(errors="ignore")  # a read may end within a letter
    os.close(ours)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "finished" in told


@pytest.mark.parametrize("is_there", [False, True])
def test_a_run_that_begins_later(is_there, tmp_path):
    """On a terminal it waits for the run, and says so: for its directory, or for more in it than its options."""
    path = make_run(tmp_path / "made")
    if is_there:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "run.toml").touch()
    ours, theirs = pty.openpty()
    watching = subprocess.Popen([*COMMAND, str(tmp_path / "run")], stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    assert watching.stderr.readline().startswith(f"waiting for {tmp_path / 'run'}, which has not begun yet")
    if is_there:
        for file in path.iterdir():
            file.rename(tmp_path / "run" / file.name)
    else:
        path.rename(tmp_path / "run")
    assert (watching.communicate(timeout=60)[1], watching.returncode) == ("", 0)
    assert "finished" in os.read(ours, 1 << 16).decode(errors="ignore")
    os.close(ours)


def test_q_ends_the_view(tmp_path):
    """On a terminal that somebody types on; the key is told, other keys do nothing, and the terminal is as it was."""
    path = make_run(tmp_path / "run", result=False)
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 60, 0, 0))  # lines, columns
    env = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}} | {"TERM": "xterm"}
    with subprocess.Popen(
        [*COMMAND, str(path)], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=env
    ) as watching:
        told = b""
        while b"q ends this view, the run goes on" not in told:
            told += os.read(ours, 1 << 16)
        os.write(ours, b"xq")
        last: list[bytes] = []
        reading = threading.Thread(target=drain, args=(ours, last), daemon=True)
        reading.start()
        assert (watching.wait(60), watching.stderr.read()) == (0, b"")
    assert termios.tcgetattr(theirs) == before
    os.close(theirs)
    reading.join(60)
    os.close(ours)
    frame = b"".join(last).rpartition(b"\x1b[?1049l")[2].decode()  # after the screen of its own
    assert 5 < frame.count("\n") < 12  # it fits, with a line for the prompt
    assert "step 60" in frame


def drain(terminal, into):
    """Read what is drawn, so that nobody waits for room."""
    with contextlib.suppress(OSError):  # the other end is closed
        while told := os.read(terminal, 1 << 16):
            into.append(told)


def test_a_page_until_ctrl_c(tmp_path):
    """A run that has not begun is waited for, and others beside it are named; the address is printed with its token.

    Ctrl-C ends it with code 0.
    """
    made, path = make_run(tmp_path / "runs" / "made"), tmp_path / "runs" / "run"
    program = (  # SIGINT may be ignored in us (a test run in the background), and would be in what we start
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"sys.argv[1:] = ['watch', {str(path)!r}, '--web']; from unisono.cli.main import main; main()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        try:
            waiting = process.stderr.readline()
            made.rename(path)
            line = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
        finally:
            process.kill()
    assert waiting.startswith(f"waiting for {path}, which has not begun yet; Ctrl-C ends it. In {path.parent} there is")
    assert str(made) in waiting
    assert line.startswith("http://127.0.0.1:")
    assert code == 0
