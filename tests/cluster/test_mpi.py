"""A real Open MPI: programs of ours and of others, started by mpirun; openmpi.sh says what is installed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster.engines import (
    DIGITS,
    ENVIRONMENT,
    PLAIN_DDP,
    SHOW_WORLD,
    UNISONO,
    alone,
    call,
    fingerprint_in,
    install,
    weights_in,
    worlds_in,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]


@pytest.fixture(scope="module", autouse=True)
def openmpi():
    install("openmpi.sh")


def test_the_world_of_a_real_mpirun():
    """Ranks, sizes, and one rendezvous for all."""
    done = call(*MPIRUN, "-n", "3", sys.executable, "-c", SHOW_WORLD)
    assert done.returncode == 0, done.stderr
    worlds = worlds_in(done.stdout)
    assert [world["rank"] for world in worlds] == [world["local_rank"] for world in worlds] == [0, 1, 2]
    assert {(world["world_size"], world["local_world_size"]) for world in worlds} == {(3, 3)}
    assert {world["launcher"] for world in worlds} == {"openmpi"}
    assert len({world["rendezvous"] for world in worlds}) == 1


def test_mpirun_gives_the_bits_of_one_process():
    """`mpirun -n 4 python script.py`, as it is."""
    done = call(*MPIRUN, "-n", "4", sys.executable, DIGITS)
    assert done.returncode == 0, done.stderr
    assert "openmpi 4 fingerprint" in done.stdout
    assert fingerprint_in(done.stdout) == alone()
    assert fingerprint_in(done.stdout) != alone("--seed", "1")  # the control


def test_a_script_that_knows_no_unisono():
    """Under `unisono launch mpi` and torchrun the same weights."""
    done = call(*UNISONO, "launch", "mpi", "-n", "2", PLAIN_DDP)
    assert done.returncode == 0, done.stderr
    torchrun = call(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", PLAIN_DDP)
    assert weights_in(done.stdout) == weights_in(torchrun.stdout)
    # The control: without `unisono join` it finds nobody, mpirun's variables alone are not torch's.
    assert call(*MPIRUN, "-n", "2", sys.executable, PLAIN_DDP).returncode != 0


def test_mpirun_killed_on_the_way_and_called_again(tmp_path):
    """SIGTERM to mpirun, at a step; the same command goes on, with the bits of an undisturbed run."""
    command = [*MPIRUN, "-n", "2", sys.executable, DIGITS, "--out", str(tmp_path / "run")]
    with subprocess.Popen([*command, "--step-s", "0.05"], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        while "step 21" not in first.stdout.readline():
            assert first.poll() is None
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=300)
    assert first.returncode != 0
    again = call(*command)
    assert again.returncode == 0, again.stderr
    assert fingerprint_in(again.stdout) == alone()
    assert len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()) == 46


def test_the_mpi_backend_is_not_in_this_torch():
    """Asked for, it is said clearly what is missing and what to do; once for each rank, without a traceback."""
    done = call(*UNISONO, "launch", "mpi", "-n", "2", DIGITS, "--transport", "mpi")
    assert done.returncode == 2
    told = [line for line in done.stderr.splitlines() if "built with MPI" in line]
    assert 1 <= len(told) <= 2
    assert "Hint: mpirun starts ranks all the same" in told[0]
    assert "Traceback" not in done.stderr


def test_nothing_is_left():
    """No process that mpirun has started for the programs above outlives it."""
    deadline = time.monotonic() + 10
    while left := [pid for pid in os.listdir("/proc") if pid.isdigit() and is_rank(pid)]:  # noqa: PTH208
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def is_rank(pid: str) -> bool:
    """Whether a process is a rank of mpirun's that runs one of the programs."""
    try:
        words, variables = (Path("/proc", pid, name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
    except OSError:
        return False
    is_ours = {DIGITS.encode(), PLAIN_DDP.encode()} & set(words)
    return bool(is_ours) and any(variable.startswith(b"OMPI_COMM_WORLD_RANK=") for variable in variables)
