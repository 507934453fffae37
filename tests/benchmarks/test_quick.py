"""Every benchmark runs: with --quick, in seconds, and leaves records that fit the schema."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
OPTIONS = {  # of each benchmark, besides --quick
    "checkpoint_stall": [],
    "codec": [],
    "cpu_level": [],
    "data_start": [],
    "ddp_over_shm": [],
    "exact_vs_ddp": [],
    "first_step": [],
    "forecast_error": [],
    "hosts": [],
    "live_hosts": [],
    "live_kills": [],
    "live_missing": [],
    "lm_step": [],
    "loader": [],
    "memory": [],
    "mnist_step": [],
    "overhead": ["-n", "2", "--samples", "--only", "unisono Trainer"],
    "past_steps": ["--only", "replays", "--only", "poisons"],  # the others have tests of their own
    "phase_cost": [],
    "pipeline_bubble": [],
    "play_examples": [],
    "proof_picture": [],
    "replicas_cost": [],
    "restart_time": [],
    "rounded_accuracy": [],
    "scaling_pictures": [],
    "shared_gradients": [],
    "shm_against_gloo": [],
    "start_up": [],
    "text_step": [],
    "thousand_kills": [],
    "time_examples": [],
    "time_to_accuracy": [],
    "witness": [],
}
PARTS = {  # what is no benchmark by itself: who runs it
    "accuracy_tables": "time_to_accuracy",
    "baselines/ddp": "time_to_accuracy",
    "baselines/jobs": "time_to_accuracy",
    "example_job": "play_examples",
    "hosts_rank": "hosts",
    "past_job": "past_steps",
    "hosts_records": "hosts",
    "kills_job": "thousand_kills",
    "kills_stage": "thousand_kills",
    "live_job": "live_kills",
    "live_parts": "live_kills",
    "live_picture": "live_kills",
    "proof_job": "proof_picture",
    "real_gradients": "codec",
    "timed_recipe": "time_to_accuracy",
    "__main__": "test_bench.py",
    "catalogue": "test_bench.py",
    "harness": "all",
    "origin": "all",
    "results": "all",
    "figures": "test_figures.py",
    "quoted": "test_quoted.py",
}
ELSEWHERE = {"baselines/with_accelerate": "accelerate", "baselines/with_lightning": "lightning"}


def test_none_is_forgotten():
    """Each program of benchmarks/ is run below, is a part of one that is, or needs a package that is named."""
    there = {path.relative_to(BENCHMARKS).with_suffix("").as_posix() for path in BENCHMARKS.rglob("*.py")}
    assert there == set(OPTIONS) | set(PARTS) | set(ELSEWHERE)


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.slow
@pytest.mark.timeout(660)
@pytest.mark.parametrize("name", OPTIONS)
def test_quick(name, tmp_path, monkeypatch):
    """It ends well, and writes its records to --out and nowhere else."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import results
    from catalogue import lacking_network

    if name == "hosts" and (why := lacking_network()):
        pytest.skip(why)
    kept = {path: path.read_bytes() for path in results.RESULTS.glob("*.json")}
    done = run(BENCHMARKS / f"{name}.py", *OPTIONS[name], "--quick", "--out", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.json"]
    found = results.read(tmp_path / f"{name}.json")
    assert found
    assert all("--quick" in result.command and result.source is None for result in found)
    assert {path: path.read_bytes() for path in results.RESULTS.glob("*.json")} == kept


@pytest.mark.slow
@pytest.mark.parametrize("name", ELSEWHERE)
def test_baselines_of_other_packages(name, tmp_path, monkeypatch):
    """The programs of accelerate and Lightning train on a few invented reviews, where the packages are installed."""
    if importlib.util.find_spec(ELSEWHERE[name]) is None:
        pytest.skip(f"{ELSEWHERE[name]} is not installed: see benchmarks/baselines/README.md")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from harness import make_reviews

    reviews = make_reviews(tmp_path)
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", BENCHMARKS / f"{name}.py"]
    done = run(*start, "imdb", "--data", reviews, "--epochs", "1", "--limit", "32")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["epoch"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp_over_shm", "exact_vs_ddp", "pipeline_bubble", "shared_gradients"])
def test_one_process_is_too_few(name):
    """What compares processes and is started on one says so, and how to start it."""
    done = run("-m", "unisono", "run", "-n", "1", BENCHMARKS / f"{name}.py", "--quick")
    assert done.returncode == 2
    assert f"expected at least 2 processes, got 1. Hint: python benchmarks/{name}.py" in done.stderr
    assert "Traceback" not in done.stderr
