"""``unisono verify`` says equal only for equal bits, and names the step where runs part."""

import json
import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from unisono.cli.main import unisono
from unisono.cli.verify import _table

SCRIPT = """
import sys
import torch, unisono
from torch.nn import functional as F

run = unisono.Run(seed=1, replicas=2, out="my own directory")
model = torch.nn.Linear(3, 2)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
generator = torch.Generator().manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(24, 3, generator=generator), torch.arange(24) % 2)
print("noise of the script", sys.argv[1:])
wrong_from = int(sys.argv[1])
for batch in run.steps(run.loader(data, batch_size=8), epochs=2):
    is_wrong = batch.step >= wrong_from and run.world.rank == 1
    run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y) * (2 if is_wrong else 1))
"""


def verify(folder, *arguments: str) -> subprocess.CompletedProcess[str]:
    strange = re.compile(r"RANK|WORLD_SIZE|MASTER_.*|(UNISONO|SLURM|OMPI|LOCAL)_.*|(OMP|MKL)_NUM_THREADS")
    env = {name: value for name, value in os.environ.items() if not strange.fullmatch(name)}
    command = [sys.executable, "-m", "unisono", "verify", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=220, check=False)


def is_said(answer: dict, workers: list[int]) -> bool:
    """Whether the comparison holds what it promises of runs that are equal."""
    trials = answer["trials"]
    return (
        answer["equal"] is True
        and [trial["workers"] for trial in trials] == workers
        and len({trial["fingerprint"] for trial in trials}) == 1
        and all(trial["steps"] == 4 and trial["seconds"] > 0 for trial in trials)
    )


def test_equal_runs_of_a_recipe(tmp_path, monkeypatch, here):
    """The digits twice: code 0, equal, one fingerprint, nothing left behind."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(unisono, ["verify", "digits", "-n", "1,1", "--limit", "200", "--epochs", "1", "--json"])
    assert result.exit_code == 0, result.output
    assert is_said(json.loads(result.stdout.splitlines()[-1]), [1, 1])
    assert list(tmp_path.iterdir()) == []


def test_a_table_fits_the_terminal(monkeypatch):
    """One that would break the lines of fingerprints shows their first half; a pipe gets them whole."""
    trials = [{"workers": count, "seconds": 12.3456, "steps": 460, "fingerprint": "9f" * 32} for count in (1, 16)]
    monkeypatch.setenv("COLUMNS", "80")
    assert all("9f" * 32 in line for line in _table(trials)[1:])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert max(map(len, _table(trials))) <= 80
    assert [line.split() for line in _table(trials)[1:]] == [[c, "12.3", "460", "9f" * 16] for c in ("1", "16")]
    monkeypatch.setenv("COLUMNS", "92")
    assert all("9f" * 32 in line for line in _table(trials)[1:])


@pytest.mark.slow
def test_a_recipe_has_one_fingerprint(tmp_path):
    """As above, on one and two workers."""
    done = verify(tmp_path, "digits", "-w", "1,2", "--limit", "200", "--epochs", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert is_said(json.loads(done.stdout), [1, 2])
    assert list(tmp_path.iterdir()) == []


def test_a_rank_dependent_script_is_caught_at_its_first_wrong_step(tmp_path):
    """A loss that depends on the rank from step 3 on: code 1, the step and fields named, both fingerprints shown."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = verify(tmp_path, "script.py", "-w", "1,2", "3")
    assert done.returncode == 1, done.stderr
    assert "1 and 2 workers part at step 3 in: " in done.stderr
    assert "loss" in done.stderr
    assert "gradient" in done.stderr
    *rows, verdict = [line.split() for line in done.stdout.splitlines()]
    assert verdict == ["DIFFERENT"]
    assert rows[0] == ["workers", "seconds", "steps", "fingerprint"]
    assert [row[0] for row in rows[1:]] == ["1", "2"]
    assert len({row[3] for row in rows[1:]}) == 2
    assert "noise of the script" not in done.stdout
    assert not (tmp_path / "my own directory").exists()


def test_a_script_that_trains_nothing_proves_nothing(tmp_path):
    """Without a result there is nothing to compare: code 2, with the fix."""
    (tmp_path / "idle.py").write_text("print('done')")
    done = verify(tmp_path, "idle.py", "-w", "1,2")
    assert done.returncode == 2
    assert "ended without a result. Hint" in done.stderr
    assert "equal" not in done.stdout + done.stderr


def test_a_script_that_fails_is_no_difference(tmp_path):
    """A failing script ends with its own code and traceback, not with a verdict."""
    (tmp_path / "broken.py").write_text("raise SystemExit('the script gives up')")
    done = verify(tmp_path, "broken.py", "-w", "2,1")
    assert done.returncode == 1
    assert "the script gives up" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("digits -w 1,two", "numbers such as 1,2,4, each from 1 to 1,024, got '1,two'"),
        ("digits -w 1,,2", "numbers such as"),
        ("digits -w 0,1", "each from 1 to 1,024, got '0,1'"),
        ("digits -w 1,9", "9"),
        ("digits -w 1,2 --batch-size 0", "expected --batch-size as a whole number of samples from 1"),
        ("digits -w 1,2 surplus", "takes no arguments, got surplus"),
        ("mnits -w 1,2", "did you mean 'mnist'"),
        ("nowhere.py -w 1,2", "nowhere.py"),
        ("script.py --epochs 3", "--epochs is for recipes"),
        ("script.py --strategy fsdp", "--strategy is for recipes"),
        ("digits --strategy ddp -n 1,2", "runs on 1, 2 workers compute different things. Hint: --workers 2,2"),
        ("digits --strategy fspd", "did you mean 'fsdp'"),
        ("digits --strategy ddp --shares 1,2", "no option 'shares'"),
        ("digits --gpus 0", "expected --gpus with GPUs out of 0 visible ones"),
        ("digits --out here", "No such option '--out'"),
        ("digits --config none.toml", "--config none.toml: No such file"),
        ("--config run.toml", "line 2: unknown key 'epoch'. Hint: did you mean 'epochs'"),
        ("--config run.toml script.py", "unknown key 'epoch'"),
    ],
)
def test_wrong_settings_are_code_2(tmp_path, monkeypatch, arguments, words):
    """Wrong numbers, recipes, files and options are refused before anything is tried."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "run.toml").write_text('recipe = "digits"\nepoch = 1\n')
    result = CliRunner().invoke(unisono, ["verify", *arguments.split()])
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert "[1/" not in result.output


@pytest.mark.slow
def test_options_that_the_script_overrules(tmp_path):
    """--replicas for a script that sets its own would prove something else than was asked: code 2, with the reason."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = verify(tmp_path, "script.py", "-w", "1,2", "--replicas", "4", "99")
    assert done.returncode == 2, done.stderr
    assert "--replicas 4 was given, but the script sets replicas=2 itself" in done.stderr


RUN = """
recipe = "digits"
workers = 3
out = "kept"
nnodes = 2
limit = 64
epochs = 2
batch-size = 16
replicas = 4
seed = 3
"""


def test_a_run_file_says_what_is_compared(tmp_path, monkeypatch, here):
    """Its recipe and options are those of the runs; where it goes, on how many workers and hosts is passed over."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN)

    def told(*arguments):
        result = CliRunner().invoke(unisono, ["verify", "--config", "run.toml", "-n", "1,1", "--json", *arguments])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)["trials"]

    found = told()
    assert [(trial["workers"], trial["steps"]) for trial in found] == [(1, 8), (1, 8)]
    assert told("--epochs", "1")[0]["steps"] == 4  # what is typed wins
    assert told("--seed", "3")[0]["fingerprint"] == found[0]["fingerprint"] != told("--seed", "4")[0]["fingerprint"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_a_strategy_whose_bits_depend_on_the_workers_is_repeated(tmp_path, monkeypatch, here):
    """Nobody has said on how many: the same number twice; exact ones on one and two."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(
        unisono, ["verify", "digits", "--strategy", "dp", "--limit", "64", "--epochs", "1", "--json"]
    )
    assert result.exit_code == 0, result.output
    assert [trial["workers"] for trial in json.loads(result.stdout)["trials"]] == [1, 1]


@pytest.mark.slow
def test_fsdp_has_one_fingerprint(tmp_path):
    """On one and two real processes, which nobody had to ask for."""
    done = verify(tmp_path, "digits", "--strategy", "fsdp", *["--limit", "64", "--epochs", "4", "--json"])
    assert done.returncode == 0, done.stderr
    assert is_said(json.loads(done.stdout), [1, 2])
