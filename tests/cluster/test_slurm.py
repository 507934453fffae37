"""A real Slurm of one node: jobs that run, are pre-empted, requeue and finish; slurm.sh says what is installed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster.engines import (
    DIGITS,
    PLAIN_DDP,
    SHOW_WORLD,
    UNISONO,
    alone,
    call,
    fingerprint_in,
    install,
    slurm,
    weights_in,
    worlds_in,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
# SIGINT may be ignored in us (a test run in the background); the command would inherit that.
START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from unisono.cli.main import main; main()"
)
SLURM = [sys.executable, "-c", START, "launch", "slurm", "--interval", "0.5"]


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """Return the variables of a Slurm that lives as long as these tests."""
    install("slurm.sh")
    # Not below pytest's folder, which munged does not trust: only root may enter it.
    folder = Path(tmp_path_factory.mktemp("slurm"))
    for parent in (folder, *list(folder.parents)[:2]):
        parent.chmod(0o755)
    with slurm(folder) as found:
        yield found


class Job:
    """A job that `unisono launch slurm` follows in the background."""

    def __init__(self, env: dict[str, str], folder: Path, *arguments: str) -> None:
        self.env, self.logs = env, folder / "logs"
        self.said, self.written = folder / "said", folder / "written"
        with self.said.open("wb") as err, self.written.open("wb") as out:
            self.process = subprocess.Popen([*SLURM, *arguments], env=env, cwd=folder, stdout=out, stderr=err)

    def wait_for(self, text: str, file: str = "written", timeout_s: float = 500) -> re.Match[str]:
        """Wait until this has been said or written."""
        deadline = time.monotonic() + timeout_s
        while not (found := re.search(text, getattr(self, file).read_text())):
            assert self.process.poll() is None, self.said.read_text() + self.written.read_text()
            assert time.monotonic() < deadline, self.said.read_text() + self.written.read_text()
            time.sleep(0.1)
        return found

    @property
    def job_id(self) -> str:
        return self.wait_for(r"job (\d+):", "said")[1]

    def finish(self) -> tuple[int, str, str]:
        """Wait for the end; return code, news and output."""
        code = self.process.wait(timeout=900)
        return code, self.said.read_text(), self.written.read_text()


@pytest.fixture
def start(env, tmp_path):
    jobs: list[Job] = []

    def make(*arguments: str) -> Job:
        jobs.append(Job(env, tmp_path, *arguments))
        return jobs[-1]

    yield make
    for job in jobs:
        if job.process.poll() is None:
            call("scancel", job.job_id, env=env)
            job.process.kill()
            job.process.wait()


def test_the_world_of_a_real_srun(env, tmp_path):
    """Ranks, sizes, loopback on one node, and one rendezvous; a batch script alone is a world of one."""
    done = call("srun", "-n", "3", sys.executable, "-c", SHOW_WORLD, env=env)
    assert done.returncode == 0, done.stderr
    worlds = worlds_in(done.stdout)
    assert [world["rank"] for world in worlds] == [world["local_rank"] for world in worlds] == [0, 1, 2]
    assert {(world["world_size"], world["local_world_size"]) for world in worlds} == {(3, 3)}
    assert {world["launcher"] for world in worlds} == {"slurm"}
    (rendezvous,) = {world["rendezvous"] for world in worlds}
    assert rendezvous.startswith("tcp://127.0.0.1:")
    output = tmp_path / "output"
    wrapped = f"{sys.executable} -c '{SHOW_WORLD}'"
    one = call("sbatch", "-n", "3", "--wait", "-o", str(output), "--wrap", wrapped, env=env)
    assert one.returncode == 0, one.stderr
    assert [world["world_size"] for world in worlds_in(output.read_text())] == [1]


def test_a_job_gives_the_bits_of_one_process(start):
    """Submitted, followed, its output shown, code 0."""
    code, said, written = start("-n", "3", DIGITS).finish()
    assert code == 0, said + written
    assert fingerprint_in(written) == alone()
    assert "0: torchrun 3 fingerprint" in written
    assert re.search(r"job \d+: completed, exit code 0\n$", said)


def test_a_script_that_knows_no_unisono(start):
    """Under Slurm, torchrun and `unisono run` the same weights."""
    code, said, written = start("-n", "2", PLAIN_DDP).finish()
    assert code == 0, said + written
    torchrun = call(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", PLAIN_DDP)
    run = call(*UNISONO, "run", "-n", "2", PLAIN_DDP)
    assert weights_in(written) == weights_in(torchrun.stdout) == weights_in(run.stdout)


def test_a_preempted_job_goes_back_and_finishes_with_the_same_bits(start, env, tmp_path):
    """A job of higher priority takes the node: the run saves in its grace, waits, goes on, and loses no step."""
    out = tmp_path / "run"
    job = start("-n", "2", "--partition", "low", DIGITS, "--out", str(out), "--step-s", "0.1")
    job.wait_for("step 21\n")
    urgent = call("srun", "--partition", "high", "-n", "4", "sleep", "1", env=env)
    assert urgent.returncode == 0, urgent.stderr
    code, said, written = job.finish()
    assert code == 0, said + written
    assert "unisono: stopped after step" in written
    assert "goes back into the queue" in written
    assert "requeued 1 time" in said
    assert fingerprint_in(written) == alone()
    steps = [int(step) for step in re.findall(r"step (\d+)\n", written)]
    assert steps == sorted(set(steps)), "a step was computed twice"


def test_a_job_requeued_by_an_operator(start, env, tmp_path):
    """`scontrol requeue`: the same."""
    job = start("-n", "2", DIGITS, "--out", str(tmp_path / "run"), "--step-s", "0.1")
    job.wait_for("step 11\n")
    assert call("scontrol", "requeue", job.job_id, env=env).returncode == 0
    code, said, written = job.finish()
    assert code == 0, said + written
    assert "requeued 1 time" in said
    assert fingerprint_in(written) == alone()


def test_the_warning_before_the_time_limit(start, env, tmp_path):
    """USR1 to the ranks: the run saves, and its job goes back into the queue by itself."""
    job = start("-n", "2", DIGITS, "--out", str(tmp_path / "run"), "--step-s", "0.1")
    job.wait_for("step 11\n")
    # What Slurm does when the time is nearly up, without waiting for a minute.
    assert call("scancel", "--signal", "USR1", job.job_id, env=env).returncode == 0
    code, said, written = job.finish()
    assert code == 0, said + written
    assert "stopped and saved; job" in written
    assert "requeued 1 time" in said
    assert fingerprint_in(written) == alone()


def test_a_cancelled_job_stays_cancelled(start, env, tmp_path):
    """It may save, but does not put itself back; the following ends with a code that says so."""
    job = start("-n", "2", DIGITS, "--out", str(tmp_path / "run"), "--step-s", "0.1")
    job.wait_for("step 11\n")
    assert call("scancel", job.job_id, env=env).returncode == 0
    code, said, written = job.finish()
    assert code not in (0, 75), said + written
    assert re.search(r"job \d+: cancelled", said)
    assert "goes back" not in written
    # The control: started again by hand it goes on.
    code, said, written = start("-n", "3", DIGITS, "--out", str(tmp_path / "run")).finish()
    assert (code, fingerprint_in(written)) == (0, alone()), said + written


def test_a_failing_rank_ends_the_job_with_its_code(start, tmp_path):
    """The others do not keep the node; nothing is requeued."""
    script = tmp_path / "fails.py"
    script.write_text("import os, sys, time\nsys.exit(7) if os.environ['RANK'] == '1' else time.sleep(300)\n")
    code, said, _ = start("-n", "2", str(script)).finish()
    assert code in (7, 137, 143), said  # a killed rank's code may be the higher one
    assert "requeued" not in said


def test_an_array_of_two_seeds(start, tmp_path):
    """Each task is a run of its own, with its index in the arguments and its output."""
    arguments = ["-n", "1", "--array", "0-1", DIGITS, "--seed", "{task}", "--out", str(tmp_path / "run-{task}")]
    code, said, written = start(*arguments).finish()
    assert code == 0, said + written
    assert set(re.findall(r"fingerprint ([0-9a-f]{64})", written)) == {alone("--seed", "0"), alone("--seed", "1")}
    assert len(list((tmp_path / "logs").glob("digits-*_[01].log"))) == 2


def test_a_refused_job(start):
    """Slurm's own reason, code 1."""
    code, said, _ = start("--partition", "no-such", DIGITS).finish()
    assert code == 1
    assert "sbatch refused the job" in said
    assert "invalid partition" in said


def test_ctrl_c_ends_the_following_and_not_the_job(start, env):
    """Code 130, and how to end the job itself."""
    job = start("-n", "1", DIGITS, "--step-s", "0.1")
    job_id = job.job_id
    job.wait_for("step 1\n")
    job.process.send_signal(signal.SIGINT)
    code, said, _ = job.finish()
    assert code == 130
    assert f"job {job_id} goes on. To end it: scancel {job_id}" in said
    assert "JobState=RUNNING" in call("scontrol", "-o", "show", "job", job_id, env=env).stdout
    assert call("scancel", job_id, env=env).returncode == 0


def test_slurm_listens_on_loopback_only(env):
    """The test's own daemons are not open to the network."""
    ports = {f"{26817 + offset:04X}" for offset in range(2)}
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if " 0A " in line]
    ours = [address for address in listening if address.rpartition(":")[2] in ports]
    assert ours
    assert {address.rpartition(":")[0] for address in ours} == {"0100007F"}
    assert os.environ.get("SLURM_CONF") is None
