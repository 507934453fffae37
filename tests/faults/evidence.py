"""Launches for the fault matrix, and the record of what was seen: one JSON line a row in ``build/faults.jsonl``."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from unisono.experiments.injector import heartbeat_files
from unisono.observe.compare import first_difference
from unisono.system.heartbeat import HeartbeatPage, Reading

JOB = Path(__file__).with_name("job.py")
SEED = 3  # of all runs here: `job.train` gives it to its run
RECORD = Path(__file__).parents[2] / "build" / "faults.jsonl"
# SIGINT may be ignored in us (a test run in the background); a launcher would inherit that.
RUN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from unisono.cli.run import run; run(prog_name='unisono run')"
)


def record(
    row: int, fault: str, *, expected: str, seen: str, seed: int = SEED, fingerprints: tuple[str, ...] = ()
) -> None:
    """Append a row of the matrix to the record; fails where it was not what is expected.

    Args:
        row: Its number.
        fault: What was done.
        expected: What must be seen.
        seen: What was seen.
        seed: Repeats the case.
        fingerprints: Of the undisturbed run and of the disturbed one; none where no run came to its end.
    """
    RECORD.parent.mkdir(exist_ok=True)
    line = {"row": row, "fault": fault, "seed": seed, "expected": expected, "seen": seen, "fingerprints": fingerprints}
    with RECORD.open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert seen == expected, (row, fault)


class Launches:
    """A folder with the run directory ``run``, and the launchers started there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "run"
        self.started: list[subprocess.Popen[str]] = []
        self.env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
        (folder / "tmp").mkdir()

    def start(
        self, *faults: str, workers: int = 2, options: tuple[str, ...] = (), descriptors: int = 0
    ) -> subprocess.Popen[str]:
        """Start the job under ``unisono run``; with at most so many open files, if told."""
        command = [sys.executable, "-c", RUN, "-n", str(workers), *options, str(JOB), str(self.out), *faults]
        if descriptors:
            command = ["/bin/sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
        launcher = subprocess.Popen(
            command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.started.append(launcher)
        return launcher

    def run(
        self, *faults: str, workers: int = 2, restarts: int = 3, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run the job to its end."""
        return finish(self.start(*faults, workers=workers, options=("--max-restarts", str(restarts), *options)))

    def readings(self) -> list[Reading]:
        """Return what the workers of the launch in progress tell."""
        found = []
        for path in sorted(heartbeat_files(self.folder / "tmp")):
            with contextlib.suppress(FileNotFoundError, ValueError):
                found.append(HeartbeatPage(path).read())
        return found

    def wait_for_step(self, step: int, workers: int = 2) -> list[Reading]:
        """Wait until all workers have begun `step`."""
        deadline = time.monotonic() + 150
        while True:
            found = self.readings()
            if len(found) == workers and all(reading.step >= step and reading.is_joined for reading in found):
                return found
            assert time.monotonic() < deadline, found
            assert self.started[-1].poll() is None, self.started[-1].communicate()
            time.sleep(0.005)

    @property
    def result(self) -> dict:
        """The run's ``result.json``."""
        return json.loads((self.out / "result.json").read_text())

    def judge(self, row: int, fault: str, reference: Path) -> None:
        """Record a row of the matrix with both fingerprints; fails where the run does not equal the reference."""
        theirs = json.loads((reference / "result.json").read_text())["fingerprint"]
        seen, ours = self.is_equal_to(reference), self.result["fingerprint"]
        record(row, fault, expected="equal", seen=seen, seed=SEED, fingerprints=(theirs, ours))

    def is_equal_to(self, reference: Path) -> str:
        """Return ``equal`` where fingerprint and ledger are those of the reference, else what differs."""
        theirs = json.loads((reference / "result.json").read_text())
        if self.result["fingerprint"] != theirs["fingerprint"]:
            return "fingerprints differ"
        return "equal" if first_difference(reference / "ledger.jsonl", self.out / "ledger.jsonl") is None else "ledgers"

    def leftovers(self) -> list[str]:
        """Return private directories that nobody has removed, after giving the reaper a moment."""
        deadline = time.monotonic() + 10
        while (found := list((self.folder / "tmp").glob("unisono-*"))) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [path.name for path in found]

    def close(self) -> None:
        for launcher in self.started:
            if launcher.poll() is None:
                launcher.kill()
            launcher.communicate(timeout=30)


def finish(launcher: subprocess.Popen[str], timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
    """Wait for a launcher's end."""
    out, err = launcher.communicate(timeout=timeout_s)
    assert "computed again after the resume" not in err, err  # an honest program is not suspected
    return subprocess.CompletedProcess(launcher.args, launcher.returncode, out, err)


def is_gone(pid: int, within_s: float = 15.0) -> bool:
    """Whether a process ends in time; a zombie has."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)


def kill(pid: int, signum: int = signal.SIGKILL) -> None:
    """Send a signal to a worker that is known to live."""
    os.kill(pid, signum)
