"""Other people's programs under our launcher, on gloo and on shared memory, beside torchrun's run of the same.

`make public` gives them an environment of their own. A project that is missing there, or of another version than is
pinned, is a failure. torchrun's run is the reference: two ranks' sums have one order, so every bit must be equal.
"""

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = [pytest.mark.public, pytest.mark.timeout(600)]

PEERS = ("accelerate", "datasets", "pytorch-ignite", "pytorch-lightning", "torchmetrics", "transformers")
HERE = Path(__file__).parent
OURS = ("lightning_fit", "transformers_trainer", "ignite_parallel", "torchmetrics_sync")
THEIRS = ("test_script", "test_sync")  # of accelerate, in its wheel
OPS = "accelerate_ops"  # which calls a third
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--redirects", "1"],
    "gloo": ["unisono", "run", "-n", "2", "--devices", "cpu", "--output", "prefix"],
    "shm": ["unisono", "run", "-n", "2", "--devices", "cpu", "--output", "prefix", "--backend", "shm"],
}
OWN = ("gloo", "shm")


def pinned() -> dict[str, str]:
    """Return the versions that both files of constraints ask for."""
    files = (HERE.parent.parent / "constraints.txt", HERE / "constraints.txt")
    lines = [line for file in files for line in file.read_text().splitlines() if "==" in line]
    return dict(line.split("==") for line in lines)


class Launches:
    """Every program under every launcher, two at a time: most of a launch is the start of two processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pool = ThreadPoolExecutor(2)
        self._running: dict[tuple[str, str], Future[list[str]]] = {
            (program, launcher): self._pool.submit(self._launch, program, launcher)
            for program in (*OURS, *THEIRS, OPS)
            for launcher in LAUNCHERS
        }

    def lines(self, program: str, launcher: str) -> list[list[str]]:
        """Return what each rank has printed; raises where the program failed."""
        return self._running[program, launcher].result()

    def results(self, program: str, launcher: str) -> list[dict]:
        """Return what each rank has recorded."""
        self.lines(program, launcher)
        where = self.folder / program / launcher
        return [json.loads((where / f"{rank}.json").read_text()) for rank in range(2)]

    def close(self) -> None:
        """Drop what has not begun, and wait for the rest."""
        self._pool.shutdown(cancel_futures=True)

    def _launch(self, program: str, launcher: str) -> list[list[str]]:
        where = self.folder / program / launcher
        where.mkdir(parents=True)
        module, *options = LAUNCHERS[launcher]
        if launcher == "torchrun":
            options += ["--log-dir", str(where / "log"), str(HERE / "until_asleep.py")]
        path = of_accelerate(program) if program in THEIRS else HERE / f"{program}.py"
        command = [sys.executable, "-m", module, *options, str(path), str(where)]
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(where / "hub"), "TOKENIZERS_PARALLELISM": "false"}
        fixed = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
        # accelerate takes part in a world of CPUs only where it is told, as `accelerate launch --cpu` does.
        told = {"ACCELERATE_USE_CPU": "1"} if program in THEIRS else {}
        env = {**os.environ, **offline, **fixed, **told}
        done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
        if launcher == "torchrun":
            logs = [next(where.glob(f"log/*/attempt_0/{rank}/stdout.log")) for rank in range(2)]
            return [log.read_text().splitlines() for log in logs]
        found = [re.match(r"\[rank (\d)\] ?(.*)", line) for line in done.stdout.splitlines()]
        return [[line[2] for line in found if line and int(line[1]) == rank] for rank in range(2)]


def of_accelerate(program: str) -> Path:
    """Return a script of accelerate's own, without an import of it."""
    spec = importlib.util.find_spec("accelerate")
    assert spec is not None and spec.origin is not None, "accelerate is not installed: make public"
    return Path(spec.origin).parent / "test_utils" / "scripts" / f"{program}.py"


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    """Start them all."""
    started = Launches(tmp_path_factory.mktemp("public"))
    yield started
    started.close()


@pytest.mark.parametrize("name", [*PEERS, "torch"])
def test_versions(name):
    """What is tried is what is pinned, with the torch of all other tests."""
    assert importlib.metadata.version(name).partition("+")[0] == pinned()[name]


@pytest.mark.parametrize("launcher", OWN)
@pytest.mark.parametrize("program", OURS)
def test_programs(launches, program, launcher):
    """A program of another project computes what it computes under torchrun: weights, metrics, messages, every bit."""
    reference, results = launches.results(program, "torchrun"), launches.results(program, launcher)
    assert [result.pop("backend") for result in results] == [launcher] * 2
    assert [result.pop("backend") for result in reference] == ["gloo"] * 2
    assert results == reference
    assert [result["size"] for result in results] == [2, 2]
    assert results[0]["weights"] == results[1]["weights"]


@pytest.mark.parametrize("launcher", OWN)
@pytest.mark.parametrize("program", [*THEIRS, OPS])
def test_scripts_of_accelerate(launches, program, launcher):
    """The tests of accelerate pass, and each rank says what it says under torchrun; none is skipped."""
    reference, lines = launches.lines(program, "torchrun"), launches.lines(program, launcher)
    assert lines == reference
    assert len(lines[0]) > 3
    assert not [line for line in lines[0] if "kipped" in line]


@pytest.mark.parametrize("launcher", OWN)
def test_accelerate_sees_both_ranks(launches, launcher):
    """The control: in two worlds of one, as accelerate forms them without its variable, the same tests pass."""
    for program in ("test_script", OPS):
        said = "\n".join(launches.lines(program, launcher)[0])
        assert "MULTI_CPU  Backend: gloo\nNum processes: 2\nProcess index: 0" in said
    assert "**Test Distributed `no_sync` context manager**" in launches.lines("test_sync", launcher)[0]


def test_lightning_averages_whole_numbers(launches):
    """What ``self.log(..., sync_dist=True)`` makes of integers is their average, cut to a whole number."""
    for launcher in LAUNCHERS:
        logged, gathered, averaged = launches.results("lightning_fit", launcher)[0]["seen"]
        assert logged["most"] == 1.0
        assert gathered == [[0.0], [1.0]]
        assert averaged == [2, -7]
