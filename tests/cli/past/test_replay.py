"""``unisono replay`` computes past steps again on a copy, and names what keeps it from doing so."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ranks import once
from unisono.checkpoint.store import list_steps
from unisono.cli.main import unisono as command
from unisono.experiments.past.replay import nearest_checkpoint, step_of

PROGRAM = """
import pathlib, sys, torch, unisono
from torch.nn import functional as F
from sizes import HIDDEN
run = unisono.Run(seed=0, replicas=4, out=sys.argv[1], checkpoint_every=3)
model = torch.nn.Sequential(torch.nn.Linear(6, HIDDEN), torch.nn.Dropout(0.3), torch.nn.Linear(HIDDEN, 4))
model, optimizer = run.prepare(model, torch.optim.Adam(model.parameters()))
generator = torch.Generator().manual_seed(int(sys.argv[2]))
assert sys.argv[2] != "1" or pathlib.Path("sizes.py").exists()  # where it was started, with its own arguments
x, y = torch.randn(50, 6, generator=generator), torch.randint(0, 4, (50,), generator=generator)
for batch in run.steps(run.loader(unisono.ArrayDataset(x, y), batch_size=12), epochs=2):
    run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
run.close()
"""


def call(*arguments):
    done = CliRunner().invoke(command, ["replay", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


@once
def trained(folder):
    """Train ten steps of a script of two files, by itself, and return the run directory; 6, 9 and 10 are saved."""
    (folder / "sizes.py").write_text("HIDDEN = 8\n")
    (folder / "train.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "train.py", "run", "1"], cwd=folder, check=True)
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("replay"))


def test_the_program_is_found(run):
    """The run directory names the script, its arguments and its files."""
    program = json.loads((run / "program.json").read_text())
    assert program["script"] == str(run.parent / "train.py")
    assert program["args"] == ["run", "1"]
    assert sorted(Path(name).name for name in program["files"]) == ["sizes.py", "train.py"]


@pytest.mark.slow
@pytest.mark.parametrize(("step", "first", "origin"), [(10, 10, "step-00000009"), (9, 1, "the beginning")])
def test_any_step_is_computed_again(run, step, first, origin):
    """From the nearest checkpoint before it, or the beginning; how many steps is said first; nothing is touched."""
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    code, text, error = call(run, "--step", step)
    assert code == 0, error
    assert f"computing {step - first + 1} step" in error
    assert f"from {origin}" in error
    assert f", by {run.parent / 'train.py'} run 1 ..." in error
    assert f"{step if first == step else f'{first} to {step}'} " in text
    assert text.endswith("the same as in the ledger, to the last bit\n")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_recipe_is_called_as_it_was(tmp_path):
    """Options that are in no score, and where its data is, come from the run; what changes no bit does not."""
    rows = "".join(
        f"{'good' if n % 2 else 'bad'},a film that was {n % 7} times {'fine' if n % 2 else 'dull'}\n" for n in range(60)
    )
    (tmp_path / "texts.csv").write_text(f"label,text\n{rows}")
    out = tmp_path / "run"
    words = [
        "text",
        "-n",
        "2",
        "--data",
        tmp_path / "texts.csv",
        "--model",
        "bag",
        "--epochs",
        "2",
        "--batch-size",
        "20",
    ]
    words += ["--replicas", "4", "--lr", "0.05", "--shares", "1,2", "--out", out]
    done = CliRunner().invoke(command, ["train", *map(str, words)])
    assert done.exit_code == 0, done.output
    code, text, error = call(out, "--step", 3)
    assert code == 0, error
    assert text.endswith("the same as in the ledger, to the last bit\n")


@pytest.mark.slow
def test_another_number_of_workers(run):
    """What one process has computed, three compute again."""
    code, text, error = call(run, "--step", 4, "--workers", 3, "--json")
    assert code == 0, error
    assert json.loads(text) == {"equal": True, "from": 0, "step": 4, "first_other": None, "differing": []}


@pytest.mark.slow
def test_a_step_that_is_another_is_named(run, tmp_path):
    """The control: a ledger that tells something else of a step on the way, not only of the last one."""
    copy = shutil.copytree(run, tmp_path / "run")
    ledger = (copy / "ledger.jsonl").read_text().splitlines()
    told = json.loads(ledger[1])
    told["loss"] = (0.5).hex()
    (copy / "ledger.jsonl").write_text("\n".join([ledger[0], json.dumps(told), *ledger[2:]]) + "\n")
    shutil.rmtree(copy / "checkpoints")
    code, text, _ = call(copy, "--step", 3)
    assert code == 1
    assert text == "step 2 is another than in the ledger: loss\n"


@pytest.mark.slow
def test_other_data_are_refused(run):
    """Data that differ are named before a step is computed."""
    code, _, error = call(run, "--step", 10, "--", "run", "2")
    assert code == 2
    assert "data.fingerprint" in error


def test_a_changed_program_is_refused(run):
    """Any of its files: named, with what to do, before anything starts."""
    file = run.parent / "sizes.py"
    try:
        file.write_text("HIDDEN = 9\n")
        code, text, error = call(run, "--step", 10)
        assert (code, text) == (2, "")
        assert f"{file} has changed. Hint: bring back" in error
        assert "computing" not in error
        file.unlink()
        assert f"{file} is missing" in call(run, "--step", 10)[2]
    finally:
        file.write_text("HIDDEN = 8\n")


@pytest.mark.slow
def test_a_program_that_trains_nothing_proves_nothing(run, tmp_path):
    """It would find the steps of the run in the copy's ledger, equal to themselves."""
    (tmp_path / "other.py").write_text("print('done')\n")
    code, text, error = call(run, "--step", 10, "--script", tmp_path / "other.py")
    assert (code, text) == (2, "")
    assert "the program has ended without computing step 10. Hint: is it the script that made the run" in error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--step", 11], "expected --step as one of the 10 steps in"),
        (["--step", 0], "--step"),
        (["--step", "x"], "--step"),
        (["--step", 3, "--script", "nowhere.py"], "nowhere.py"),
        (["--step", 3, "--workers", 5], "5"),
    ],
)
def test_wrong_usage_is_one_line(run, arguments, told):
    """A step that is not there, a script that is not there, too many workers: one line, code 2, nothing computed."""
    code, text, error = call(run, *arguments)
    assert (code, text) == (2, "")
    assert told in error
    assert "computing" not in error


def test_what_is_no_run(run, tmp_path):
    """A directory that is none of a run is named; so is one whose program nobody knows."""
    assert call(tmp_path, "--step", 1)[0] == 2
    assert f"expected a run directory, got '{tmp_path}', an empty directory" in call(tmp_path, "--step", 1)[2]
    for name in ("score.json", "ledger.jsonl"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    assert "does not say which script made it. Hint: --script FILE" in call(tmp_path, "--step", 1)[2]
    (tmp_path / "program.json").write_text('{"script": 1}')
    assert "program.json is not what a run writes" in call(tmp_path, "--step", 1)[2]


@pytest.mark.parametrize("name", ["score.json", "environment.json"])
@pytest.mark.parametrize("content", ["3", "[]", '{"a":'])
def test_damaged_files_are_named(run, tmp_path, name, content):
    """In one line, whatever stands there."""
    for each in ("score.json", "ledger.jsonl", "program.json", "environment.json"):
        (tmp_path / each).write_bytes((run / each).read_bytes())
    (tmp_path / name).write_text(content)
    code, text, error = call(tmp_path, "--step", 1)
    assert (code, text, len(error.splitlines())) == (2, "", 1)
    assert f"{tmp_path}/{name} is not the JSON that a run writes" in error


def test_workers_that_decide_bits_are_kept(run, tmp_path):
    """Where a strategy's bits depend on the number of workers, another one is refused with the one to give."""
    for name in ("score.json", "ledger.jsonl", "program.json", "environment.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    file = tmp_path / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"world_size": 2}))
    code, _, error = call(tmp_path, "--step", 1)
    assert code == 2
    assert "Hint: --workers 2." in error


def test_a_damaged_checkpoint_is_passed_over(run, tmp_path):
    """The next older one is begun from, and that is said."""
    copy = shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    steps = [step for step, _ in list_steps(copy)]
    assert steps == [10, 9]
    told = []
    assert step_of(nearest_checkpoint(copy, 11, told.append)) == 10
    next(path for step, path in list_steps(copy) if step == 10).joinpath("model.safetensors").write_bytes(b"")
    assert step_of(nearest_checkpoint(copy, 11, told.append)) == 9
    assert len(told) == 1
    assert nearest_checkpoint(copy, 9, told.append) is None


def in_terminal(words, answers):
    """Run a command in a terminal of its own, give one answer to each prompt, return code and all that was shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "unisono", *map(str, words)])
    shown, given = b"", 0
    while True:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # closed by its last process
            break
        shown += more
        if shown.count(b"(Pdb) ") > given:
            os.write(terminal, answers[given].encode() + b"\n")
            given += 1
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


@pytest.mark.slow
def test_stopping_inside(run):
    """In a terminal: stops in the loss function of that replica; who changes its micro-batch has another step."""
    words = ["replay", run, "--step", 10, "--pdb", "--replica", 1]
    code, shown = in_terminal(words, ["p micro.x.shape, model.training", "micro.x.mul_(2)", "c"])
    assert "train.py(" in shown
    assert ")<lambda>()" in shown
    assert "(torch.Size([1, 6]), True)" in shown
    assert "step 10 is another than in the ledger: loss, gradient" in shown
    assert code == 1
    code, shown = in_terminal(words, ["q"])
    assert "the debugger was left: nothing was compared" in shown
    assert code == 1


@pytest.mark.slow
def test_detail(run):
    """Compared first; then samples, activations and gradients, in lines of 80 columns; the same as JSON."""
    code, text, error = call(run, "--step", 10, "--detail")
    assert code == 0, error
    lines = text.splitlines()
    assert lines[0] == "step 10 is the same as in the ledger, to the last bit"
    assert max(map(len, lines)) <= 80
    assert {"replica", "activations", "gradients"} <= {line.split()[0] for line in lines if line}
    told = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()][9]
    assert f"loss {float.fromhex(told['loss']):.4g}, " in lines[1]
    rows = [line.split() for line in lines[lines.index("", 3) - told["num_samples"] : lines.index("", 3)]]
    assert [row[0] for row in rows] == ["0", "1"]
    assert {"0.weight", "0.bias", "2.weight", "2.bias"} <= {line.split()[0] for line in lines if line}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--detail", "--workers", 2], "by one process, got --workers 2. Hint: --workers 1."),
        (["--pdb"], "--pdb needs a terminal"),
        (["--pdb", "--detail"], "--pdb goes with neither --detail nor --json"),
        (["--detail", "--step", 11], "one of the 10 steps"),
    ],
)
def test_what_cannot_be_looked_at(run, arguments, told):
    """Several processes, no terminal, both at once: one line, code 2, nothing computed."""
    code, text, error = call(run, *arguments)
    assert (code, text) == (2, "")
    assert told in error
    assert "computing" not in error
