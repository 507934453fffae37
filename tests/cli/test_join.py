"""``unisono join``: one rank of a world that another launcher has started."""

import os
import subprocess
import sys

import pytest

RANK = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


@pytest.fixture
def join(tmp_path):
    def call(body, *options, args=(), env=RANK, name="script.py"):
        (tmp_path / name).write_text(body)
        bare = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        target = name.removesuffix(".py") if "-m" in options else name
        command = [sys.executable, "-P", "-m", "unisono", "join", *options, target, *args]
        return subprocess.run(command, cwd=tmp_path, env={**bare, **env}, capture_output=True, text=True, check=False)

    return call


SHOW = """
import os, sys, json
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "OMP_NUM_THREADS", "GLIBC_TUNABLES"]
print(json.dumps([__name__, sys.argv, [os.environ.get(name) for name in names]]), "torch" in sys.modules)
"""


@pytest.mark.parametrize("options", [[], ["-m"]], ids=["script", "module"])
def test_a_program_finds_its_place(join, options):
    """As the main program, with its arguments, torchrun's variables and one thread; torch is left to it."""
    done = join(SHOW, *options, args=["--epochs", "2"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('["__main__", ["')
    assert '"--epochs", "2"], ["1", "3", "1", "127.0.0.1", "1", "glibc' in done.stdout
    assert done.stdout.endswith("False\n")


def test_a_program_for_torch_distributed_launch_is_told_its_local_rank(join):
    """As `unisono run` does."""
    body = "import argparse, sys\nargparse.ArgumentParser().add_argument('--local_rank')\nprint(sys.argv[1:])"
    assert join(body).stdout == "['--local_rank=1']\n"


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise ValueError('the cause')", 1, "ValueError: the cause\n"),
        (
            "from unisono import ConfigError\nraise ConfigError('expected this')",
            2,
            "[rank 1/3] ConfigError: expected this\n",
        ),
        ("from unisono import RunStopped\nraise RunStopped(7)", 75, ""),
    ],
    ids=["exit", "exception", "setting", "stopped"],
)
def test_exit_codes(join, body, code, said):
    """The program's own; 2 for a wrong setting, said in one line with the rank."""
    done = join(body)
    assert done.returncode == code
    assert done.stderr.endswith(said)
    assert ("Traceback" in done.stderr) == (code == 1)


def test_a_stopped_run_leaves_its_mark_instead_of_a_code(join, tmp_path):
    """For launchers that would kill the ranks that are still leaving; only a stop does, no failure."""
    mark = {"UNISONO_STOPPED": str(tmp_path / "mark")}
    done = join("from unisono import RunStopped\nraise RunStopped(7)", env=RANK | mark)
    assert (done.returncode, (tmp_path / "mark").read_text()) == (0, "7\n")
    (tmp_path / "mark").unlink()
    assert join("raise SystemExit(75)", env=RANK | mark).returncode == 75
    assert not (tmp_path / "mark").exists()


def test_nobody_has_started_it(join):
    """Code 1 and the remedy."""
    done = join("", env={})
    assert done.returncode == 1
    assert done.stderr.startswith("unisono join: expected to be started by srun, mpirun or torchrun")


def test_a_missing_script(join):
    """Code 2, before torch or anything else is loaded."""
    done = subprocess.run(
        [sys.executable, "-m", "unisono", "join", "no.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "expected a Python file at 'no.py'" in done.stderr
