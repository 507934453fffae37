"""A real Ray, from PyPI in an environment of its own (ray.sh): ranks in a placement group."""

import os
import re
import signal
import subprocess
import sys

import pytest

from cluster.engines import DIGITS, ENVIRONMENT, PLAIN_DDP, alone, call, fingerprint_in, install, weights_in

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    """Return the command and the variables of Ray on this machine alone."""
    python = install("ray.sh", os.path.abspath("build/ray-venv"), sys.executable)  # noqa: PTH100
    home = tmp_path_factory.mktemp("home")
    own = {"HOME": str(home), "RAY_TMPDIR": "/tmp", "RAY_USAGE_STATS_ENABLED": "0"}
    return [python, "-m", "unisono", "launch", "ray"], {**ENVIRONMENT, **own}


def test_ray_gives_the_bits_of_one_process(ray):
    """Three ranks in a placement group, half a core each."""
    command, env = ray
    done = call(*command, "-n", "3", "--cpus-per-worker", "0.5", DIGITS, env=env)
    assert done.returncode == 0, done.stderr
    assert "[rank 0] torchrun 3 fingerprint" in done.stdout
    assert fingerprint_in(done.stdout) == alone()


def test_a_script_that_knows_no_unisono(ray):
    """The same weights as under torchrun."""
    command, env = ray
    done = call(*command, "-n", "2", PLAIN_DDP, env=env)
    assert done.returncode == 0, done.stderr
    torchrun = call(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", PLAIN_DDP)
    assert weights_in(done.stdout) == weights_in(torchrun.stdout)


def test_sigterm_saves_and_a_killed_rank_is_replaced(ray, tmp_path):
    """Code 75 after SIGTERM; then a rank dies of SIGKILL and all start again; the bits stay."""
    command, env = ray
    start = [*command, "-n", "2", "--max-restarts", "1", DIGITS, "--out", str(tmp_path / "run"), "--step-s", "0.05"]
    with subprocess.Popen(start, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as first:
        read_until(first, "step 11")
        first.send_signal(signal.SIGTERM)
        rest = first.communicate(timeout=600)[0]
    assert first.returncode == 75, rest
    assert "stopped after step" in rest
    with subprocess.Popen(start, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as second:
        read_until(second, "step 31")
        os.kill(rank_processes()[0], signal.SIGKILL)
        rest = second.communicate(timeout=600)[0]
    assert second.returncode == 0, rest
    assert "ended with code 137" in rest
    assert "Restart 1 of 1" in rest
    assert fingerprint_in(rest) == alone()
    assert rank_processes() == []


def test_the_code_of_a_failing_rank(ray, tmp_path):
    """The first one's, and the others do not linger."""
    command, env = ray
    script = tmp_path / "fails.py"
    script.write_text("import os, sys, time\nsys.exit(7) if os.environ['RANK'] == '1' else time.sleep(300)\n")
    done = call(*command, "-n", "2", str(script), env=env)
    assert done.returncode == 7, done.stderr
    assert "rank 1 of 2 ended with code 7" in done.stderr


def test_no_room(ray):
    """Said with what is needed and what there is."""
    command, env = ray
    done = call(*command, "-n", "999", "--wait", "2", PLAIN_DDP, env=env)
    assert done.returncode == 1
    assert re.search(r"expected room for 999 ranks .* 999 CPU; the cluster has \d+ CPU in all. Hint", done.stderr)


def read_until(process, text):
    while text not in (line := process.stdout.readline()):
        assert line or process.poll() is None


def rank_processes():
    """Return the processes that run the digits as a joined rank."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
                words = file.read().split(b"\0")
        except OSError:
            continue
        if b"unisono.launchers.engines.joined" in words and DIGITS.encode() in words:
            found.append(int(pid))
    return found
