"""``unisono train``: all is checked before a worker starts, and what was interrupted goes on to the same bits."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpus import forget, pretend_gpus, told
from unisono.cli.options.job import usual_live
from unisono.cli.train import train as train_command
from unisono.data.sets.mnist_files import PINS
from unisono.report.watch.state import WatchedRun
from unisono.report.watch.told import events
from unisono.system.directory import Directory
from unisono.train.run_directory.lock import RunLock

KEYS = {"fingerprint", "steps", "epochs", "world_size", "replicas", "wall_s", "train_s", "metrics"}
SETTINGS = ("--limit", "200", "--epochs", "4", "--batch-size", "16", "--checkpoint-every", "4", "--replicas", "4")
NUM_STEPS = 4 * 13


def environment() -> dict[str, str]:
    """Return our environment without any launcher's variables."""
    strange = re.compile(r"RANK|WORLD_SIZE|MASTER_.*|(UNISONO|SLURM|OMPI|LOCAL)_.*|(OMP|MKL)_NUM_THREADS")
    return {name: value for name, value in os.environ.items() if not strange.fullmatch(name)}


def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "unisono", "train", *arguments],
        env={**environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def train(*arguments: str, **variables: str) -> tuple[int, str, str]:
    process = start(*arguments, **variables)
    out, err = process.communicate(timeout=220)
    return process.returncode, out, err


def worker_of(launcher: int, rank: int) -> int:
    """Return the process of a rank."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        about = Path(f"/proc/{child}")
        if (about / "comm").read_text().strip() == f"unisono-rank{rank}":
            return int(child)
    raise AssertionError(f"rank {rank} is not there")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted run on one worker: its directory and what was printed."""
    out = tmp_path_factory.mktemp("reference") / "run"
    return out, train("digits", "-n", "1", *SETTINGS, "--out", str(out), "--json")


@pytest.mark.slow
def test_batches_that_grow_are_the_same_on_any_number_of_workers():
    """Equal fingerprints on 1, 2 and 3 workers; without the schedule another one."""
    job = ("digits", "--limit", "100", "--epochs", "2", "--batch-size", "10", "--replicas", "4", "--json")
    growing = [train(*job, "--batch-schedule", "4:30,8:50", "-n", str(workers)) for workers in (1, 2, 3)]
    assert [code for code, _, _ in growing] == [0, 0, 0], growing
    *prints, other = (json.loads(out)["fingerprint"] for _, out, _ in (*growing, train(*job, "-n", "1")))
    assert len({*prints}) == 1
    assert other not in prints


def test_json_is_one_object_on_standard_output(reference):
    """With --json a program reads one object with the promised keys; progress goes to standard error."""
    out, (code, printed, told) = reference
    assert code == 0, told
    assert printed.count("\n") == 1
    assert json.loads((out / "command.json").read_text())["command"].startswith("unisono train digits ")
    result = json.loads(printed)
    assert set(result) >= KEYS
    assert re.fullmatch("[0-9a-f]{64}", result["fingerprint"])
    assert (result["steps"], result["epochs"], result["world_size"], result["replicas"]) == (NUM_STEPS, 4, 1, 4)
    assert 0 < result["train_s"] <= result["wall_s"]
    assert set(result["metrics"]) == {"test_loss", "test_accuracy"}
    assert result["resumed_from_step"] == 0
    assert result == json.loads((out / "result.json").read_text())
    first, second, *_ = told.splitlines()
    assert first == f"digits (cnn): 4 epochs, batch 16; in {out}"
    assert second == f"follow it: unisono watch {out}"
    losses = [float.fromhex(json.loads(line)["loss"]) for line in (out / "ledger.jsonl").read_text().splitlines()[-13:]]
    (last,) = re.findall(r"epoch 4/4  train_loss (\S+)  test_loss \S+  test_accuracy \S+  \d[\d.]* m?s", told)
    assert float(last) == pytest.approx(sum(losses) / 13, abs=1e-4)  # of that epoch alone
    assert "\x1b" not in told


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "strategy"), [(0, "exact"), (1, "allreduce")])
def test_a_worker_is_killed(rank, strategy, reference, tmp_path):
    """By default the other one finishes the step, and writes what the leader wrote; or all start again, and it is said.

    So each of the two is the other's control.
    """
    source, _ = reference
    out, goes_on = tmp_path / "run", strategy == "exact"
    process = start(
        "digits", "-n", "2", "--strategy", strategy, *(SETTINGS if goes_on else SETTINGS[:-2]), "--out", str(out)
    )
    while not (out / "ledger.jsonl").exists() or (out / "ledger.jsonl").read_bytes().count(b"\n") < 10:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    os.kill(worker_of(process.pid, rank), signal.SIGKILL)
    _, told = process.communicate(timeout=220)
    assert process.returncode == 0, told
    result = json.loads((out / "result.json").read_text())
    assert "live recovery is off" not in told
    assert ("1 worker goes on without it." in told, "Restart 1 with 2 workers" in told) == (goes_on, not goes_on)
    if goes_on:
        step = re.search(rf"rank {rank} was killed by SIGKILL in step (\d+)", told)[1]
        assert any(line.endswith(f"rank {rank} died in step {step}") for line in events(WatchedRun(out)))
    assert ("; the other workers cannot go on without it: the strategy is allreduce" in told) == (not goes_on)
    assert (result.get("deaths"), result["totals"]["launches"] > 1) == (1 if goes_on else None, not goes_on)
    assert "[rank 1] epoch" not in told, "who leads writes like a leader"
    if goes_on:
        names = ("ledger.jsonl", "metrics.jsonl", "commitment.json")
        assert all((out / name).read_bytes() == (source / name).read_bytes() for name in names)


def test_where_workers_go_on_by_default():
    """On one host, through shared memory, where a death may be lived through; whatever is said wins."""
    usual = {"live": "auto", "is_live_usual": True}
    assert usual_live({"max_restarts": 3, "transport": "auto"}, 1) == usual
    assert usual_live({"max_restarts": 3}, 2) == {}
    for said in ({"live": "off"}, {"live": "auto"}, {"max_restarts": 0}, {"transport": "gloo"}):
        assert usual_live({"max_restarts": 3} | said, 1) == {}


def test_quiet_is_the_result_alone():
    """With --quiet nothing is told while it trains; what is wrong is told nevertheless."""
    few = ("--limit", "32", "--epochs", "1", "--batch-size", "16", "--replicas", "1", "-n", "1", "-q")
    code, printed, told = train("digits", *few)
    assert (code, told) == (0, "")
    assert printed.startswith("fingerprint")
    assert train("digits", *few, "--lr", "0.5")[1].splitlines()[0] != printed.splitlines()[0]
    code, printed, told = train("digits", *few, "--bf16")
    assert (code, printed) == (2, "")
    assert "has no use for --bf16" in told


def test_the_run_directory_is_complete_and_private(reference):
    """A run leaves score, environment, ledger, result and checkpoints, in a directory for its owner only."""
    out, _ = reference
    assert {"score.json", "environment.json", "ledger.jsonl", "result.json", "checkpoints"} <= {
        path.name for path in out.iterdir()
    }
    assert len((out / "ledger.jsonl").read_text().splitlines()) == NUM_STEPS
    assert out.stat().st_mode & 0o077 == 0


def test_a_finished_run_is_resumed_not_repeated(reference, tmp_path, here):
    """The same command again finds nothing left to do, says so, and gives the result of the launch that trained."""
    source, (_, printed, _) = reference
    shutil.copytree(source, tmp_path / "run")
    told = CliRunner().invoke(train_command, ["digits", "-n", "1", *SETTINGS, "--out", str(tmp_path / "run")])
    assert told.exit_code == 0, told.output
    first = json.loads(printed)
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == first
    assert f"fingerprint  {first['fingerprint']}" in re.sub(" +", "  ", told.stdout)
    last = told.stdout.splitlines()[-1]
    assert last.startswith(
        f"the run was complete before, this launch has computed nothing. It took: {NUM_STEPS} steps, "
    )


def test_killed_and_resumed_on_another_number_of_workers_gives_the_same_bits(reference, tmp_path):
    """SIGKILL after the first checkpoint, then one worker fewer: fingerprint and ledger are as if nothing was.

    Also the human output of the resumed run: where it went on, and the fingerprint.
    """
    source, (_, printed, _) = reference
    out = tmp_path / "run"
    process = start("digits", "-n", "2", *SETTINGS, "--out", str(out))
    while not list((out / "checkpoints").glob("step-*")):
        try:
            process.wait(timeout=0.01)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"ended before its first checkpoint: {process.communicate()}")
    process.kill()
    process.communicate(timeout=60)  # to the end of its output: the leader, who writes the files, is gone too
    assert not (out / "result.json").exists(), "the run was over before it could be killed"
    code, text, told = train("digits", "-n", "1", *SETTINGS, "--out", str(out))
    assert code == 0, told
    result = json.loads((out / "result.json").read_text())
    assert 4 <= result["resumed_from_step"] < NUM_STEPS
    assert f"resumed after step {result['resumed_from_step']}" in told
    assert "computed again after the resume" not in told
    assert result["fingerprint"] == json.loads(printed)["fingerprint"]
    assert result["metrics"] == json.loads(printed)["metrics"]
    assert (out / "ledger.jsonl").read_bytes() == (source / "ledger.jsonl").read_bytes()
    assert "complete before" not in text
    assert f"fingerprint    {result['fingerprint']}\ntest_loss      {result['metrics']['test_loss']:.4f}\n" in text


# One process for all wrong commands: whether torch was loaded in it, and whether it ever had a child, is asked of it.
ASK = """
import contextlib, io, json, resource, sys
from unisono.cli.main import main
def used():
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
answers = {}
for name, arguments in json.loads(sys.argv[1]).items():
    sys.argv = ["unisono", "train", *arguments]
    out, err = io.StringIO(), io.StringIO()
    before = used()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            code = repr(error)
    answers[name] = [code, out.getvalue(), err.getvalue(), used() - before, "torch" in sys.modules]
print(json.dumps(answers))
"""


def mnist_like(folder: Path, *, sizes: dict[str, int] | None = None) -> str:
    """Write files under MNIST's names, of the pinned sizes but with zeros in them."""
    folder.mkdir()
    for name, pin in PINS.items():
        if name.endswith(".gz"):
            with (folder / name).open("wb") as file:
                file.truncate((sizes or {}).get(name, pin.size_bytes))
    return str(folder)


# What is typed after `unisono train`, and what the message must name. {..} are paths of the fixture.
WRONG = {
    "workers above replicas": ("digits -n 3 --replicas 2", r"3.*replicas"),
    "no workers": ("digits -n 0", r"whole number of processes from 1 to 4,096, got 0"),
    "workers no number": ("digits -n two", r"workers.*'two'"),
    "batch size": ("digits -n 1 --batch-size 0", r"--batch-size as a whole number of samples from 1 to [0-9,]*, got 0"),
    "negative limit": ("digits -n 1 --limit -5", r"--limit as a whole number of samples from 1 to [0-9,]*, got -5"),
    "unknown recipe": ("mnits -n 1", r"did you mean 'mnist'"),
    "unknown model": ("digits -n 1 --model gcnn", r"no model 'gcnn'"),
    "data for digits": ("digits -n 1 --data {missing}", r"brings its own data"),
    "missing data": ("mnist -n 1 --data {missing}", r"{missing}.*train-images-idx3-ubyte"),
    "truncated data": ("mnist -n 1 --data {truncated}", r"{truncated}/train-images-idx3-ubyte\.gz.*9,912,422.*1,000"),
    "wrong checksum": ("mnist -n 1 --data {zeros}", r"{zeros}/train-images-idx3-ubyte\.gz.*440fcabf73cc"),
    "missing reviews": ("imdb -n 1 --data {missing}", r"{missing}"),
    "unknown strategy": ("digits -n 2 --strategy alreduce", r"did you mean 'allreduce'"),
    "another strategy's option": (
        "digits -n 2 --strategy ddp --shares 1,2",
        r"no option 'shares'.*option of exact",
    ),
    "shares": ("digits -n 2 --shares 1,2,2", r"one share for each of 2 processes.*--workers 3"),
    "no island steps": ("digits --island-steps 0", r"--island-steps as a whole number of steps from 1 .*, got 0"),
    "odd islands": ("digits --replicas 4 --island-steps 2 --islands 3", r"4 replicas into equal parts.*one of 1, 2, 4"),
    "few islands": ("digits -n 4 --replicas 4 --island-steps 2 --islands 2", r"each of 2 islands.*--workers 2"),
    "other islands": (
        "digits -n 1 --out {reference} --limit 200 --batch-size 16 --island-steps 2",
        r"island_steps: None -> 2",
    ),
    "a server alone": ("digits -n 1 --strategy ps", r"needs a worker beside 1 server"),
    "dp on two": ("digits -n 2 --strategy dp", r"dp runs in 1 process, got 2"),
    "one device": ("digits -n 1 --strategy dp --devices 1", r"several devices"),
    "no mesh": ("digits -n 3 --strategy pipeline", r"3 processes are no rows of 2 stages.*--workers 2"),
    "micro-batches": ("digits -n 2 --strategy pipeline --micro-batches 4 --replicas 8", r"means 4 replicas, got 8"),
    "another score": ("digits -n 1 --out {reference} --replicas 4 --limit 200 --batch-size 8", r"batch_size: 16 -> 8"),
    "another seed": ("digits -n 1 --out {reference} --limit 200 --batch-size 16 --seed 1", r"seed: 0 -> 1"),
    "no score": ("digits -n 1 --out {no_score}", r"{no_score}"),
    "strange score": ("digits -n 1 --out {strange_score}", r"{strange_score}"),
    "nested score": ("digits -n 1 --out {nested_score}", r"{nested_score}.*choose another --out"),
    "out is a file": ("digits -n 1 --limit 8 --epochs 1 --out {file}", r"{file}"),
    "out has other files": (
        "digits -n 1 --out {zeros}",
        r"empty directory or that of a run, got {zeros}.*--out .*/run",
    ),
    "out cannot be written": ("digits -n 1 --out /proc/run", r"can be written, got /proc/run from --out: No such file"),
    "out is in use": ("digits -n 1 --out {in_use}", r"{in_use} is in use by process [0-9]+ .*choose another --out"),
}


@pytest.fixture(scope="module")
def refused(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    paths = {"reference": reference[0]}
    for name in ("missing", "truncated", "zeros", "no_score", "strange_score", "nested_score", "file", "in_use"):
        paths[name] = folder / name
    paths["missing"].mkdir()
    paths["in_use"].mkdir()
    mnist_like(paths["truncated"], sizes={"train-images-idx3-ubyte.gz": 1000})
    mnist_like(paths["zeros"])
    for name, text in (("no_score", "{torn"), ("strange_score", "[1]"), ("nested_score", "[" * 100_000)):
        paths[name].mkdir()
        (paths[name] / "score.json").write_text(text)
    paths["file"].write_text("")
    commands = {name: [word.format(**paths) for word in text.split()] for name, (text, _) in WRONG.items()}
    lock = RunLock(Directory.open(paths["in_use"]))
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(commands)], capture_output=True, text=True, check=True, env=environment()
    )
    lock.release()
    return {name: re.escape(str(path)) for name, path in paths.items()}, json.loads(done.stdout)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_and_data_are_refused_before_a_worker_starts(refused, name):
    """Code 2, one message that names the cause, nothing on standard output, no process, no torch."""
    paths, answers = refused
    code, out, err, children, has_torch = answers[name]
    assert code == 2, err
    assert out == ""
    assert err.startswith(("unisono train: ", "Usage: unisono train "))
    wanted = WRONG[name][1]
    for place, path in paths.items():
        wanted = wanted.replace(f"{{{place}}}", path)
    assert re.search(wanted, err, re.DOTALL), err
    assert children == 0
    assert not has_torch


def test_a_started_process_would_be_noticed():
    """The control: the measure used above grows with any child."""
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0


def test_no_option_stands_for_two_things():
    """Options of recipes and of strategies come from different places: no name may be in both."""
    names = [name for parameter in train_command.params for name in parameter.opts]
    assert len(names) > 30
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_the_workers_of_a_recipe_are_told_their_gpus(tmp_path):
    """--gpus reaches every process, shared on request; more processes than GPUs are refused, and none starts."""
    gpus = pretend_gpus(tmp_path, 4)
    job = ("digits", "--epochs", "1", "--limit", "64", "--gpus", "0,2")
    code, _, err = train(*job, "-n", "2", **gpus)
    assert (code, told(tmp_path)) == (0, ["0,2", "0,2"]), err
    forget(tmp_path)
    code, _, err = train(*job, "-n", "3", "--share-devices", **gpus)
    assert (code, told(tmp_path)) == (0, ["0 1", "2 1", "0 1"]), err
    forget(tmp_path)
    code, _, err = train(*job, "-n", "3", **gpus)
    assert (code, told(tmp_path)) == (2, [])
    assert "expected a GPU for each worker, got 3 workers and 2 GPUs" in err
