"""A fork shares its parent's steps bit for bit, and differs from then on in what is changed, and in nothing else."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional as F

import unisono
from experiments.past import forger
from ranks import once
from unisono.cli.main import unisono as command
from unisono.errors import ConfigError
from unisono.experiments.past.examine import debug, epoch_of, examine
from unisono.experiments.past.fork import branch, fork
from unisono.experiments.past.replay import replay
from unisono.observe.ledger import read_lines
from unisono.report.comparison.run_diff import compare_runs

HOW = {"script": None, "workers": "1", "data": None, "allow_drift": False}


def train(out, *, lr=0.1, decay=0.0, gamma=0.9, epochs=3):
    """Train 15 steps; states of 5, 10 and 15 stay."""
    policy = unisono.CheckpointPolicy(keep_sparse=5)
    with unisono.Run(seed=0, replicas=4, out=out, checkpoint_every=100, checkpoints=policy) as run:
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=decay)
        schedule = None if gamma is None else torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma)
        model, optimizer = run.prepare(model, optimizer, schedule)
        draws = torch.Generator().manual_seed(1)
        x, y = torch.randn(50, 6, generator=draws), torch.randint(0, 4, (50,), generator=draws)
        for batch in run.steps(run.loader(unisono.ArrayDataset(x, y), batch_size=12), epochs=epochs):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    return read_lines(out / "ledger.jsonl")


def forked(parent, out, **changed):
    branch(parent, out, 10, (), HOW, lambda _: None)
    return train(out, **changed)


@once
def made(folder):
    train(folder / "parent")
    return folder / "parent"


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return made(tmp_path_factory.mktemp("fork"))


def rates(lines):
    return [float.fromhex(line["lr"]) for line in lines]


def test_a_fork_that_changes_nothing(parent, tmp_path):
    """Equal to its parent: ledger, weights, metrics; its score says where it leaves it; the parent is untouched."""
    before = {path: path.read_bytes() for path in parent.rglob("*") if path.is_file()}
    forked(parent, tmp_path / "fork")
    assert compare_runs(parent, tmp_path / "fork").equal
    said = json.loads((tmp_path / "fork" / "score.json").read_text())["fork"]
    assert said["step"] == 10
    assert len(said["ledger_head"]) == 32
    assert {path: path.read_bytes() for path in parent.rglob("*") if path.is_file()} == before


def test_another_learning_rate(parent, tmp_path):
    """The schedule goes on in proportion; ten lines are the parent's; a decay that is changed is in force too."""
    was, now = read_lines(parent / "ledger.jsonl"), forked(parent, tmp_path / "fork", lr=0.2)
    assert now[:10] == was[:10]
    assert rates(now)[10:] == pytest.approx([2 * rate for rate in rates(was)[10:]])
    assert now[10]["gradient"] == was[10]["gradient"]  # of the same weights and samples
    assert all(a["weights"] != b["weights"] for a, b in zip(now[11:], was[11:], strict=True))
    decayed = forked(parent, tmp_path / "decayed", decay=0.01)
    assert rates(decayed) == rates(was)
    assert decayed[11]["weights"] != was[11]["weights"]


def test_a_schedule_with_other_settings(parent, tmp_path):
    """What the schedule does from here on is the fork's."""
    assert rates(forked(parent, tmp_path / "fork", gamma=0.5))[-1] == pytest.approx(0.1 * 0.9**5 * 0.5**2)


def test_a_state_that_does_not_fit(parent, tmp_path):
    """A fork without its parent's schedule is refused, with what was expected."""
    with pytest.raises(ConfigError, match="expected the scheduler StepLR, got None"):
        forked(parent, tmp_path / "fork", gamma=None)


def test_a_fork_is_resumed_as_it_is(parent, tmp_path):
    """Stopped in the middle and gone on with: as in one piece, and the rate is not changed a second time."""
    whole = forked(parent, tmp_path / "whole", lr=0.2, epochs=4)
    branch(parent, tmp_path / "fork", 10, (), HOW, lambda _: None)
    train(tmp_path / "fork", lr=0.2, epochs=3)
    assert train(tmp_path / "fork", lr=0.2, epochs=4) == whole


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"step": 99}, "one of the 15 steps"),
        ({"step": 10, "changes": ["lr=0.1"]}, "--set is for runs of recipes"),
        ({"step": 10, "out": "parent"}, "a new directory, or this very fork"),
    ],
)
def test_rubbish_is_refused(parent, tmp_path, given, said):
    """A step that is none, a change of a script, a directory in use: before anything is written."""
    out = tmp_path / given.pop("out", "fork")
    if out.name == "parent":
        shutil.copytree(parent, out)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=said):
        fork(str(parent), str(out), **given)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("field", ["loss", "epoch", "num_samples"])
def test_a_line_of_the_ledger_without_a_field(parent, tmp_path, field):
    """What reads past steps says which line is damaged, and that steps are known up to there."""
    shutil.copytree(parent, run := tmp_path / "run")
    ledger = run / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    del lines[4][field]
    ledger.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    said = r"got 9\. Its line 5 is damaged: steps are known up to there\. Hint: put back a copy\."
    for read in (
        lambda: fork(str(run), str(tmp_path / "fork"), step=9),
        lambda: replay(str(run), step=9),
        lambda: examine(str(run), step=9),
        lambda: debug(str(run), step=9),
    ):
        with pytest.raises(ConfigError, match=said):
            read()
    with pytest.raises(ConfigError, match="expected --epoch as one of those"):
        epoch_of(str(run), 9, None)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    """The run directory of a script whose second argument is the learning rate."""
    folder = tmp_path_factory.mktemp("scripted")
    program = forger.PROGRAM.replace('| eval(os.environ.get("FORGED", "{}"))', '| {"lr": float(sys.argv[2])}')
    (folder / "train.py").write_text(program)
    subprocess.run([sys.executable, "train.py", "run", "0.1"], cwd=folder, check=True)
    return folder / "run"


@pytest.mark.slow
def test_from_the_command_line(scripted, tmp_path):
    """A script, at a step of which no state was kept, on two workers; then a recipe's option that does not exist."""
    done = CliRunner().invoke(command, ["fork", str(scripted), "--step", "7", "-o", str(tmp_path / "fork"), "-n", "2"])
    assert done.exit_code == 0, done.output
    assert "computing 2 steps to the state after step 7 ...\ntraining from step 8, by " in done.stderr
    assert done.stdout == f"{tmp_path / 'fork'} shares 7 steps with {scripted}; it is equal to its parent\n"


@pytest.mark.slow
def test_other_arguments_at_a_step_without_a_state(scripted, tmp_path):
    """The steps that are shared are computed again with the parent's own arguments, not with the fork's."""
    parent, out = scripted, tmp_path / "fork"
    fork(str(parent), str(out), [str(out), "0.2"], step=7)
    was, now = read_lines(parent / "ledger.jsonl"), read_lines(out / "ledger.jsonl")
    assert now[:7] == was[:7]
    assert rates(now)[7:] == [0.2] * 8
