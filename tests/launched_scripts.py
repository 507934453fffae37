"""Real launches: scripts are written to a fresh folder and started through the command line."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

# SIGINT and SIGHUP may be ignored in us (a test run in the background, or under nohup); a launcher would inherit that.
RUN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "from unisono.cli.run import run; run(prog_name='unisono run')"
)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Place:
    """A folder with a script, and the processes started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []
        self.env = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self.env["TMPDIR"] = str(folder)  # a killed launcher leaves its private directory behind

    def write(self, body: str, name: str = "script.py") -> str:
        (self.folder / name).write_text(textwrap.dedent(body))
        return name

    def popen(self, *command: str, **options) -> subprocess.Popen[bytes]:
        defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=self.folder, env=self.env, **{**defaults, **options})
        self.started.append(process)
        return process

    def start(self, body: str, *options: str, args: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """Start ``unisono run OPTIONS script.py ARGS``."""
        return self.popen(sys.executable, "-c", RUN, *options, self.write(body), *args)

    def run(self, body: str, *options: str, args: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return self.finish(self.start(body, *options, args=args))

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.finish(self.popen(sys.executable, *arguments))

    def finish(self, process: subprocess.Popen[bytes], timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        out, err = process.communicate(timeout=timeout_s)
        # Decoded here: text mode would turn a carriage return into a newline.
        out, err = (out or b"").decode(), (err or b"").decode()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def wait_files(self, pattern: str, count: int, timeout_s: float = 120) -> list[int]:
        """Wait for `count` files that each hold a number (written in one rename), and return the numbers."""

        def found() -> list[Path]:
            return sorted(path for path in self.folder.glob(pattern) if not path.name.endswith(".part"))

        self.wait(lambda: len(found()) >= count, timeout_s)
        return [int(path.read_text()) for path in found()]

    def wait(self, condition, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            for process in self.started:
                if process.poll() not in (None, 0, -signal.SIGKILL):
                    raise AssertionError(f"ended early: {process.returncode} {process.communicate()}")
            assert time.monotonic() < deadline, "condition not met in time"
            time.sleep(0.02)

    def wait_gone(self, pids: list[int], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while alive := [pid for pid in pids if is_alive(pid)]:
            assert time.monotonic() < deadline, f"still alive after {timeout_s} s: {alive}"
            time.sleep(0.01)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            with contextlib.suppress(ValueError):
                process.communicate(timeout=20)


# For scripts: note(name) leaves a file with the process id, all at once.
NOTE = """
import os, signal, subprocess, sys, time
RANK = int(os.environ["RANK"])
def note(name, number=None):
    with open(name + ".part", "w") as file:
        file.write(str(os.getpid() if number is None else number))
    os.rename(name + ".part", name)
"""


@pytest.fixture
def place(tmp_path):
    here = Place(tmp_path)
    yield here
    here.close()


@pytest.fixture
def note():
    return NOTE


@pytest.fixture
def alive():
    return is_alive
