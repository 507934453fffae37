"""Two runs of one program that would write into one directory: told apart, or refused."""

import re

import pytest
import torch

import unisono
from ranks import run_threads
from train.conftest import build_mlp


@pytest.mark.parametrize("out", [3, True, b"runs/first", ""])
def test_an_out_that_is_no_path(out):
    """It is refused at once; the empty path would be the working directory."""
    with pytest.raises(unisono.ConfigError, match=r"^expected out as the path of a directory, got .*Hint: out='runs/"):
        unisono.Run(replicas=1, out=out)


def begin(toy, run, steps=5):
    """Return the batches of a prepared run, and what does a step."""
    model = build_mlp()
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batches = run.steps(run.loader(toy.data, batch_size=12), epochs=1, max_steps=steps)
    return batches, lambda batch: run.step(batch, lambda micro: model(micro.x).square().mean())


def test_a_directory_with_a_run_in_the_middle_of_its_steps(toy, tmp_path):
    """A second run there is refused, with the way out; once the first is closed, it goes on from there."""
    first = unisono.Run(replicas=2, out=tmp_path)
    batches, step = begin(toy, first)
    step(next(batches))
    with pytest.raises(
        unisono.ConfigError, match=r"in use by an earlier run of this very program.*Hint: run\.close\(\)"
    ):
        unisono.Run(replicas=2, out=tmp_path)
    step(next(batches))  # the first has not noticed
    first.close()
    with unisono.Run(replicas=2, out=tmp_path) as second:
        batches, step = begin(toy, second)
        assert [batch.step for batch in batches if step(batch)] == [3, 4, 5]


def test_all_ranks_hear_of_it(toy, tmp_path):
    """The leader finds out, and every rank stops with its words."""

    def program(transport):
        first = unisono.Run(replicas=2, out=tmp_path, transport=transport)
        batches, step = begin(toy, first)
        step(next(batches))
        try:
            unisono.Run(replicas=2, out=tmp_path, transport=transport)
        except unisono.UnisonoError as error:
            return str(error)
        finally:
            first.close()

    assert all("earlier run of this very program" in heard for heard in run_threads(program, 2))


def test_an_idle_run_leaves_its_directory(toy, tmp_path):
    """A notebook's cell that is run again needs no close; the run before can no longer write there."""
    first = unisono.Run(replicas=2, out=tmp_path)
    batches, step = begin(toy, first)
    losses = [step(batch) for batch in batches]
    with unisono.Run(replicas=2, out=tmp_path) as second:
        batches, _ = begin(toy, second)
        assert list(batches) == []
        assert len(losses) == 5
        with pytest.raises(unisono.ConfigError, match="a later run of this program has taken over"):
            begin(toy, first)
    first.close()


def test_one_directory_imposed_on_two_runs(toy, tmp_path, monkeypatch):
    """Under verify a program's two runs would be taken for one: refused, unless the second is the first again."""
    monkeypatch.setenv("UNISONO_RUN_DIR", str(tmp_path / "imposed"))

    def play(out):
        with unisono.Run(replicas=2, out=out) as run:
            batches, step = begin(toy, run)
            return [batch.step for batch in batches if step(batch)]

    assert play(tmp_path / "teacher") == [1, 2, 3, 4, 5]
    said = f"this program makes a second run, out='{tmp_path}/student' after out='{tmp_path}/teacher'"
    for out, start in ((tmp_path / "student", said), (None, "this program makes a second run, out=None")):
        with pytest.raises(unisono.ConfigError, match=re.escape(start)):
            play(out)
    assert play(f"{tmp_path}/teacher/") == []  # the same run, which is complete


def test_runs_with_directories_of_their_own(toy, tmp_path):
    """Control: several runs side by side, each with its directory, or with none, are none of our business."""
    runs = [unisono.Run(replicas=2, out=out) for out in (tmp_path / "a", tmp_path / "b", None, None)]
    begun = [begin(toy, run) for run in runs]
    assert [batch.step for batches, step in begun for batch in batches if step(batch)] == [1, 2, 3, 4, 5] * 4
    for run in runs:
        run.close()
