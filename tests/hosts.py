"""Several launchers as several hosts: on this machine's loopback, or in network namespaces of their own."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from unisono.observe.compare import first_difference
from unisono.system.heartbeat import HeartbeatPage, Reading

JOB = Path(__file__).parent / "faults" / "job.py"
# SIGINT may be ignored in us (a test run in the background); a launcher would inherit that.
RUN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from unisono.cli.run import run; run(prog_name='unisono run')"
)


def gate(step: int) -> str:
    """Return the job's argument by which rank 0 waits before a step until `Hosts.open`."""
    return f"gate!@{step}:0"


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on now."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


class Host:
    """One launcher."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: dict[str, str]) -> None:
        self.name, self.folder = name, folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tmp").mkdir(exist_ok=True)
        self.err_file, self.out_file = folder / "err.txt", folder / "out.txt"
        with self.err_file.open("w") as err, self.out_file.open("w") as out:
            self.process = subprocess.Popen(
                command, cwd=folder, env={**env, "TMPDIR": str(folder / "tmp")}, stdin=subprocess.DEVNULL, stdout=out,
                stderr=err,
            )  # fmt: skip

    @property
    def err(self) -> str:
        """What it has said."""
        return self.err_file.read_text()

    def finish(self, timeout_s: float = 200) -> int:
        """Wait for its end and return its code."""
        return self.process.wait(timeout_s)

    def readings(self) -> list[Reading]:
        """Return what its workers tell."""
        found = []
        for path in sorted((self.folder / "tmp").glob("unisono-*/heartbeat-*")):
            with contextlib.suppress(FileNotFoundError, ValueError):
                found.append(HeartbeatPage(path).read())
        return found

    def wait_for_step(self, step: int, timeout_s: float = 200) -> list[Reading]:
        """Wait until all its workers have begun `step`."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.readings()) or any(one.step < step or not one.is_joined for one in found):
            assert time.monotonic() < deadline, (found, self.err)
            assert self.process.poll() is None, self.err
            time.sleep(0.01)
        return found

    def wait_for_words(self, words: str, timeout_s: float = 200) -> None:
        """Wait until it has said something."""
        deadline = time.monotonic() + timeout_s
        while words not in self.err:
            assert time.monotonic() < deadline, self.err
            assert self.process.poll() is None or words in self.err, self.err
            time.sleep(0.02)

    def wait_until_asked(self, timeout_s: float = 200) -> None:
        """Wait until its launcher has asked its workers to stop between two steps."""
        deadline = time.monotonic() + timeout_s
        while not any(
            HeartbeatPage(path).is_stop_asked for path in (self.folder / "tmp").glob("unisono-*/heartbeat-*")
        ):
            assert time.monotonic() < deadline, self.err
            assert self.process.poll() is None, self.err
            time.sleep(0.02)

    def kill_everything(self) -> None:
        """Kill the launcher and its workers at one blow, as a lost machine would."""
        pids = [reading.pid for reading in self.readings() if reading.pid]
        self.process.kill()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.process.wait(30)

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)


class Hosts:
    """A folder, and the launchers started there."""

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        self.folder, self.out = folder, folder / "run"
        self.endpoint = f"{address}:{free_port() if address == '127.0.0.1' else 29400}"
        self.started: list[Host] = []
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("UNISONO_")}
        self.env["OMP_NUM_THREADS"] = "1"

    def start(
        self,
        name: str,
        *arguments: str,
        nodes: str = "2",
        rank: int | None = None,
        workers: int = 1,
        options: Sequence[str] = (),
        out: str | Path | None = None,
        script: str | Path = JOB,
        within: Sequence[str] = (),
    ) -> Host:
        """Start a launcher; `out` is relative to a folder of its own, so that hosts can have directories of theirs."""
        numbered = () if rank is None else ("--node-rank", str(rank))
        command = [
            *within, sys.executable, "-c", RUN, "--nnodes", nodes, *numbered, "--rdzv-endpoint", self.endpoint,
            "-n", str(workers), *options, str(script), str(out or self.out), *arguments,
        ]  # fmt: skip
        return self.launch(name, command)

    def launch(self, name: str, command: Sequence[str]) -> Host:
        """Start any command as a host."""
        host = Host(name, command, self.folder / name, self.env)
        self.started.append(host)
        return host

    def open(self, step: int) -> None:
        """Open the gate of a step, for runs in directories of their own too."""
        for folder in (self.folder, *(host.folder for host in self.started)):
            (folder / f"gate-{step}").touch()

    def finish(self, *hosts: Host, timeout_s: float = 200) -> list[int]:
        """Wait for the end of hosts (all, where none is named) and return their codes."""
        return [host.finish(timeout_s) for host in hosts or self.started]

    def words(self) -> str:
        """Return what all have said, for messages."""
        return "\n".join(f"--- {host.name} ({host.process.poll()})\n{host.err}" for host in self.started)

    def close(self) -> None:
        """End all."""
        for host in self.started:
            host.close()


def result_of(out: Path) -> dict:
    """Return a run's ``result.json``."""
    return json.loads((out / "result.json").read_text())


def differs(out: Path, reference: Path) -> str:
    """Return what differs between two runs, empty for nothing: fingerprint, then ledgers."""
    if result_of(out)["fingerprint"] != result_of(reference)["fingerprint"]:
        return "fingerprints differ"
    found = first_difference(reference / "ledger.jsonl", out / "ledger.jsonl")
    return "" if found is None else f"ledgers differ: {found}"


def train_alone(folder: Path) -> Path:
    """Run the job undisturbed on one process, and return its run directory."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("UNISONO_")}
    out = folder / "run"
    done = subprocess.run(
        [sys.executable, str(JOB), str(out)], env={**env, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out
