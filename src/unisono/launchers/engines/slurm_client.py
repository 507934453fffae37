"""Send a batch script to Slurm, and follow the job: its state and output until it ends, requeues included.

Talks through ``sbatch`` and ``scontrol`` alone. Must not import torch.
"""

import subprocess
import time
from pathlib import Path
from typing import BinaryIO, final

from unisono.errors import LaunchError
from unisono.launchers.engines.following import INTERVAL_S, Tell, Write, ask, find_tool
from unisono.launchers.engines.slurm import TaskState, news, parse_job_id, parse_states

_PIECE_BYTES = 1 << 16


def submit(script: str) -> str:
    """Send a batch script; return the job's number."""
    done = subprocess.run(
        [_tool("sbatch"), "--parsable"], input=script, capture_output=True, text=True, errors="surrogateescape",
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise LaunchError(f"sbatch refused the job (code {done.returncode}): {done.stderr.strip()}")
    return parse_job_id(done.stdout)


def follow(job_id: str, *, tell: Tell, write: Write, interval_s: float = INTERVAL_S) -> int:
    """Tell a job's changes of state and write its output until it has ended for good; return its exit code.

    Slurm gives no sign when a job changes, so it is asked again and again. Of an array, the output of all tasks is
    written as it comes, and the highest exit code returned.

    Raises:
        LaunchError: Slurm does not answer, or does not know the job (any more).
    """
    scontrol = _tool("scontrol")
    known: dict[str, TaskState] = {}
    tails: dict[str, _Tail] = {}
    try:
        while True:
            tasks = _ask(scontrol, job_id, interval_s)
            for task in tasks:
                if task.log and task.nodes and task.log not in tails:
                    tails[task.log] = _Tail(task.log, write)
            for tail in tails.values():
                tail.read()
            for line in news(known, tasks):
                tell(line)
            # Slurm forgets the first tasks of a long array before the last have ended.
            known = {name: task for name, task in known.items() if task.has_ended}
            known |= {task.job_id: task for task in tasks}
            if all(task.has_ended for task in tasks):
                return max(task.exit_code for task in known.values())
            time.sleep(interval_s)
    finally:
        for tail in tails.values():
            tail.close()


def _ask(scontrol: str, job_id: str, interval_s: float) -> list[TaskState]:
    done = ask([scontrol, "-o", "show", "job", job_id], interval_s, lambda said: "Invalid job id" in said)
    if done.returncode == 0 and done.stdout.strip():
        return parse_states(done.stdout)
    raise LaunchError(
        f"scontrol says nothing about job {job_id} (code {done.returncode}): {done.stderr.strip()} "
        f"Hint: it may have ended long ago (sacct -j {job_id}), or Slurm's controller is down (scontrol ping)."
    )


def _tool(name: str) -> str:
    return find_tool(
        name,
        "Slurm's",
        "call this on a login node of the cluster, or load Slurm's module first (module load slurm); --dry-run shows "
        "the batch script anywhere.",
    )


@final
class _Tail:
    """What a file holds, and what is added to it; it may not be there yet."""

    def __init__(self, path: str, write: Write) -> None:
        self._path = path
        self._write = write
        self._file: BinaryIO | None = None

    def read(self) -> None:
        """Pass on what is new."""
        if self._file is None:
            try:
                self._file = Path(self._path).open("rb")  # noqa: SIM115 - open as long as the job lives
            except FileNotFoundError:
                return
        while piece := self._file.read(_PIECE_BYTES):
            self._write(piece)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
