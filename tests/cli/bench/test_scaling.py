"""``unisono bench scaling`` and ``tune``: what is measured, kept and refused; a crash is a failure, not a fast run."""

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from cli.test_train import environment
from gpus import forget, pretend_gpus, told
from report.drawn import tree_of
from scaling.made import study, trial
from unisono.cli.bench.scaling import study_lines
from unisono.cli.main import unisono
from unisono.experiments.scaling import FILES
from unisono.experiments.tune import fillings
from unisono.scaling.study import load


def asked(*arguments):
    """Ask in this process: for what starts nothing."""
    return CliRunner().invoke(unisono, ["bench", *arguments])


def started(*arguments, cwd=None, **variables):
    return subprocess.run(
        [sys.executable, "-m", "unisono", "bench", *arguments],
        env={**environment(), **variables}, capture_output=True, text=True, timeout=600, check=False, cwd=cwd,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("digits", "--workers", ""), "--workers as numbers"),
        (("digits", "--workers", "1,16"), "workers <= replicas"),
        (("digits", "--replicas", "2", "--workers", "1,4"), "workers <= replicas"),
        (("digits", "--steps", "10", "--warmup", "9"), "--warmup + 2"),
        (("no-such", "--workers", "1"), "no-such"),
        (("no-such.py", "--workers", "1"), "no-such.py"),
        (("no-such.py", "--batch-size", "3"), "--batch-size is for recipes"),
        (("no-such.py", "--replicas", "2", "--workers", "4"), "--replicas 2"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(arguments, expected, tmp_path):
    """Exit code 2, and no directory is made."""
    out = tmp_path / "out"
    done = asked("scaling", *arguments, "-o", str(out))
    assert done.exit_code == 2, done.output
    assert expected in done.output
    assert not out.exists()


@pytest.mark.parametrize("name", FILES)
def test_files_of_others_are_never_replaced(name, tmp_path):
    """A directory in which something else has the name of a result is refused, and left as it is."""
    (tmp_path / name).write_text("mine")
    done = asked("scaling", "digits", "--workers", "1", "-o", str(tmp_path))
    assert done.exit_code == 2
    assert "left as it is" in done.output
    assert (tmp_path / name).read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_the_table_says_what_was_seen():
    """Speed-up, efficiency, phases, why it flattens, too many workers, fingerprints; tables in 80 columns."""
    lines = study_lines(study(trial(1, 0.08), trial(2, 0.05), trial(4, 0.05)))
    text = "\n".join(lines)
    assert re.search(r" 1\.60 +80%", text)
    assert "forward" in lines[1]
    assert "beyond the ideal" in text
    assert "4 (more than cores)" in text
    assert "! 4 workers on 2 cores take turns" in text
    assert "busy" not in text
    crowded = study_lines(study(trial(1, 0.08, load=9.5), trial(2, 0.05)))
    assert any("busy with other work (load up to 9.5)" in line for line in crowded)
    assert "One fingerprint on 1, 2, 4 workers" in text
    found = lines[lines.index("Scaling:") :]
    assert max(map(len, found[: found.index("")])) <= 80
    other = study_lines(study(trial(1, 0.08), trial(2, 0.05, fingerprint="g")))
    assert "! 2 different fingerprints, where one is promised" in other


def test_what_fills_the_cores():
    """One of each is always tried, and never more threads than cores."""
    assert fillings(1) == [(1, 1)]
    assert fillings(2) == [(1, 1), (1, 2), (2, 1)]
    assert fillings(6) == [(1, 1), (1, 6), (2, 3), (4, 1), (6, 1)]


@pytest.mark.parametrize("arguments", [("--loaders", "x"), ("--steps", "9"), ("--strategy", "no-such")])
def test_tune_refuses_wrong_settings(arguments):
    """Before anything starts."""
    assert asked("tune", "digits", *arguments).exit_code == 2


@pytest.mark.parametrize("verb", ["scaling", "tune", "strategies"])
def test_gpus_that_are_not_there_are_refused(verb, tmp_path):
    """Where processes compute is said before anything starts, by every bench that trains."""
    done = asked(verb, "digits", "--gpus", "0,7")
    assert done.exit_code == 2, done.output
    assert "Hint: --gpus cpu" in done.output


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["scaling", "strategies"])
def test_the_workers_of_a_bench_are_told_their_gpu(verb, tmp_path):
    """On a machine of one GPU its processes share it on request; else they are refused, and none starts."""
    gpus = pretend_gpus(tmp_path, 2)
    how = ("-w", "2", "-r", "1", "--steps", "4", "--warmup", "1", "-o", str(tmp_path / "out"))
    job = ("digits", "--limit", "256", "--gpus", "1", *(how if verb == "scaling" else ("--strategies", "exact")))
    done = started(verb, *job, "--share-devices", **gpus)
    assert (done.returncode, told(tmp_path)) == (0, ["1 1", "1 1"]), done.stderr
    forget(tmp_path)
    done = started(verb, *job, **gpus)
    assert (done.returncode, told(tmp_path)) == (2, [])
    assert "expected a GPU for each worker, got 2 workers and 1 GPU" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_recipe_is_measured_and_kept(tmp_path):
    """Every rank's phases, one fingerprint, three files that can be read again; a second time replaces them."""
    out = tmp_path / "out"
    done = started("scaling", "digits", "-w", "1,2", "-r", "1", "--steps", "12", "--warmup", "3", "-o", str(out))
    assert done.returncode == 0, done.stderr
    found = load(out / "scaling.json")
    assert found.workers == [1, 2]
    assert found.agrees is True
    assert all(one.steps == 9 and one.startup_s > 0 and one.total_s > one.startup_s for one in found.trials)
    assert all(rank["forward"] > 0 and rank["backward"] > 0 for one in found.trials for rank in one.phases_s)
    assert "One fingerprint on 1, 2 workers: " in done.stdout
    assert len(list(tree_of(out / "scaling.svg").iter("svg"))) == 3
    assert "Content-Security-Policy" in (out / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_weak_scaling_keeps_the_work_of_a_worker(tmp_path):
    """Batch and replicas grow; fingerprints are not compared."""
    out = tmp_path / "out"
    how = ("-w", "1,2", "-r", "1", "--steps", "9", "--warmup", "2", "--weak", "--replicas", "2")
    done = started("scaling", "digits", *how, "--json", "-o", str(out))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [one["batch_size"] for one in told["trials"]] == [64, 128]
    assert told["weak"] is True


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_crashed_worker_is_a_failure(tmp_path):
    """The worker's own code comes back, and nothing is written: not even the directory."""
    script = tmp_path / "job.py"
    script.write_text("import os, sys\nsys.exit(7 if os.environ['RANK'] == '1' else 0)\n")
    done = started("scaling", str(script), "-w", "2", "-r", "1", "-o", str(tmp_path / "out"))
    assert done.returncode == 7, done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_script_that_trains_nothing_is_said(tmp_path):
    """A program that ends well without a run is no measurement either."""
    script = tmp_path / "job.py"
    script.write_text("print('done')\n")
    done = started("scaling", str(script), "-w", "1", "-r", "1", "-o", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "without a result" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tune_proposes_what_it_has_measured():
    """Every stage with its measurements; the proposal is one of them."""
    done = started("tune", "digits", "-r", "1", "--steps", "8", "--warmup", "2", "--loaders", "0", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [stage["what"] for stage in told["stages"]] == ["workers and threads", "loader processes"]
    assert told["proposal"] in [row["setting"] for row in told["stages"][-1]["tried"]]
    assert told["command"].startswith("unisono train digits --workers")
    assert all(row["samples_per_s"] > 0 for stage in told["stages"] for row in stage["tried"])
