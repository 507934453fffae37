"""A loop of the program's own shows on a terminal what is trained where, and how far it is.

The bar of notebooks: tests/launchers/test_cell.py.
"""

import re
import sys

import pytest
from torch.nn import functional as F

from terminal import run_on_terminal
from unisono.train.steps import lines

PROGRAM = """
import sys, torch, tqdm, unisono
from torch.nn import functional as F
data = unisono.ArrayDataset(torch.ones(24, 6).numpy(), torch.zeros(24, dtype=torch.long).numpy())
def train(out, wrap=lambda steps: steps, **more):
    with unisono.Run(replicas=2, out=out) as run:
        model = torch.nn.Linear(6, 4)
        model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in wrap(run.steps(run.loader(data, batch_size=12), **more)):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
def main(out):
    train(out, epochs=2)
    train(out, epochs=3)
    if unisono.World.current().is_leader:
        print("silent:", flush=True)
    train(None, epochs=2, show_progress=False)
    train(None, wrap=tqdm.tqdm, epochs=2)
if __name__ == "__main__":
    if len(sys.argv) > 2:
        unisono.launch(main, sys.argv[1], workers=2)
    else:
        main(sys.argv[1])
"""


def shown(tmp_path, *more):
    """Return what the program shows on a terminal before and after it asks for silence."""
    pytest.importorskip("tqdm", reason="the program draws with it")
    program, out = tmp_path / "program.py", tmp_path / "run"
    program.write_text(PROGRAM)
    screen = run_on_terminal([sys.executable, "-W", "ignore", str(program), str(out), *more], 120)
    before, _, after = screen.replace("\r\n", "\n").partition("silent:\n")
    return before.splitlines(), after, out


def check(told, out, workers):
    start = f"unisono: 28 parameters on cpu, 2 replicas on {workers}; in {out}"
    follow = f"follow it: unisono watch {out}"
    resumed = f"unisono: {out} resumed after step 4 of 6, from its last checkpoint"
    assert [told.pop(place) for place in (5, 4, 3, 1, 0)] == [follow, start, resumed, follow, start]
    pace = r"loss \d\.\d{4}  now [\d,]+ samples/s(  \d+% of the time is outside of steps|  data wait \d+%)?"
    assert re.fullmatch(rf"unisono: epoch 2/2  step 4/4  {pace}", told[0])
    assert re.fullmatch(rf"unisono: epoch 3/3  step 6/6  {pace}", told[1])
    assert len(told) == 2


def test_on_a_terminal(tmp_path):
    """The start, and the last step in any case; nothing where it is not wanted, or tqdm draws a bar."""
    told, after, out = shown(tmp_path)
    check(told, out, "1 worker")
    assert "4it [" in after
    assert "unisono:" not in after


@pytest.mark.slow
def test_of_several_workers_the_leader_speaks(tmp_path):
    """Its lines reach the launcher's terminal as they are."""
    told, after, out = shown(tmp_path, "launched")
    check(told, out, "2 workers")
    assert "unisono:" not in after


def test_every_few_seconds(toy, capfd, monkeypatch):
    """On a terminal no line but first and last of a short run, and all of them if that is the pause.

    In a log none of a short run; of a longer one what is trained, and all of them if that is the pause.
    """

    def told():
        with toy.run() as (run, model, _):
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        seen = capfd.readouterr().err
        assert seen.count("on cpu, ") == ("epoch" in seen)
        return re.findall("epoch (.*)  loss", seen)

    every = [f"{1 + step // 6}/2  step {step}/10" for step in range(1, 11)]
    assert told() == []
    monkeypatch.setattr(lines, "_IN_LOGS_FIRST_S", 0.0)
    assert told() == [every[0], every[-1]]
    monkeypatch.setattr(lines, "_IN_LOGS_EVERY_S", 0.0)
    assert told() == every
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert told() == ["2/2  step 10/10"]
    monkeypatch.setattr(lines, "PLAIN_EVERY_S", 0.0)
    assert told() == every


def test_a_loop_that_is_left_ends_at_once(toy, capfd, monkeypatch):
    """What follows `break` sees the steps that are done as kept, as without lines."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with toy.run() as (run, model, _):
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            if batch.step == 3:
                break
        assert run.result()["steps"] == 3
    assert "step" not in capfd.readouterr().err
