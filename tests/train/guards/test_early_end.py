"""A loop that is left early: by ``break``, by an exception behind the step or before it, without ``with``."""

import contextlib
import gc
import json
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

import unisono
from cases import some_are_slow
from unisono.checkpoint import store
from unisono.errors import PeerLost
from unisono.train.guards.early_end import is_broken_off

KEPT = "keeps nothing of what came after step 3"


def train(toy, out, leave=lambda: None, *, at=5, is_handled=False, begin=lambda: None):
    """Train with a schedule and evaluations behind each step; `leave` comes between `Run.step` and them.

    Return the steps of this launch, fingerprint, metrics and the schedule's count.
    """
    steps, handled = [], contextlib.suppress(ZeroDivisionError) if is_handled else contextlib.nullcontext()
    with toy.run(out=out, checkpoint_every=3) as (run, model, optimizer):
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 0.8**count)
        run.register("schedule", schedule)

        with handled:
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
                if batch.step == at + 1:
                    begin()
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                steps.append(batch.step)
                if batch.step == at and leave() == "break":
                    break
                schedule.step()
                run.record({f"lr after {batch.step}": optimizer.param_groups[0]["lr"]})
        return steps, run.fingerprint(), run.result()["metrics"], schedule.last_epoch


def fail():
    raise ZeroDivisionError


def test_what_the_body_has_not_done_is_done_by_a_resumed_run(toy, tmp_path, capfd):
    """An exception behind the step: the run goes on before it, with the schedule's step and the record of step 5."""
    whole = train(toy, tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        train(toy, tmp_path / "run", fail)
    err = capfd.readouterr().err
    assert f"{KEPT}: an exception has ended the loop after run.step() (ZeroDivisionError), and the rest" in err
    assert not (tmp_path / "run" / "result.json").exists()
    steps, *found = train(toy, tmp_path / "run")
    assert (steps[0], found[0], found[2]) == (4, whole[1], whole[3])
    assert found[1] == {name: lr for name, lr in whole[2].items() if int(name.rpartition(" ")[2]) > 3}
    control = train(toy, tmp_path / "control", lambda: "break"), train(toy, tmp_path / "control")
    assert control[1][1] != whole[1]  # the body of step 5 was left out, as the program has said


def test_a_rank_that_has_gone_is_no_failure_of_the_program(toy, tmp_path, capfd):
    """The words fit: a collective behind the step, which another rank did not come to."""

    def lose():
        raise PeerLost("rank 1 has died")

    with pytest.raises(PeerLost):
        train(toy, tmp_path, lose)
    assert f"{KEPT}: another rank has gone after run.step() (PeerLost), and the rest" in capfd.readouterr().err


def test_an_exception_before_the_step_keeps_the_ones_that_are_done(toy, tmp_path):
    """What the body did behind step 5 is done, so that nothing is lost."""
    whole = train(toy, tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        train(toy, tmp_path / "run", begin=fail)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 5
    steps, *found = train(toy, tmp_path / "run")
    assert (steps, found[0], found[2]) == ([6, 7, 8, 9, 10], whole[1], whole[3])


@pytest.mark.parametrize("leave", [lambda: "break", sys.exit, lambda: sys.exit(0), fail])
def test_other_ends_keep_the_step(toy, tmp_path, leave):
    """``break``, an end of the program, an exception that the program has handled; the control is above."""
    with contextlib.suppress(SystemExit):
        train(toy, tmp_path, leave, is_handled=leave is fail)
    assert json.loads((tmp_path / "result.json").read_text())["steps"] == 5
    assert train(toy, tmp_path)[0] == [6, 7, 8, 9, 10]


def test_weights_that_change_behind_the_loop_are_not_those_of_its_step(toy, tmp_path):
    """What is kept at the end of the run is what the step had."""
    with toy.run(out=tmp_path) as (run, model, _):
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            if batch.step == 5:
                break
        right = run.fingerprint()
        with torch.no_grad():
            model[0].weight.zero_()
        assert run.fingerprint() != right
    assert json.loads((tmp_path / "result.json").read_text())["fingerprint"] == right
    with toy.run(out=tmp_path) as (run, model, _):
        next(run.steps(run.loader(toy.data, batch_size=12), epochs=2))
        assert run.fingerprint() == right


def play(toy, out, fails_at=0):
    """A run that nobody closes, with a schedule behind each step; `fails_at`: the step whose body fails."""
    run = unisono.Run(seed=0, replicas=4, out=out, checkpoint_every=3)
    model = torch.nn.Linear(6, 4)
    model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 0.8**count)
    run.register("schedule", schedule)
    for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        try:
            assert batch.step != fails_at
        except AssertionError:
            run.record(failed=batch.step)
            raise
        schedule.step()
    return run.fingerprint(), schedule.last_epoch


def test_a_program_that_tries_again(toy, tmp_path):
    """It catches what the body raises, has recorded it, and makes a new run: the body is done again."""
    whole = play(toy, tmp_path / "whole")
    with pytest.raises(AssertionError):
        play(toy, tmp_path / "run", fails_at=5)
    assert store.list_steps(tmp_path / "run" / "checkpoints")[0][0] == 3
    assert play(toy, tmp_path / "run") == whole


def stop_early(toy, out, at, how):
    run = unisono.Run(seed=0, replicas=4, out=out)
    model = torch.nn.Linear(6, 4)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    steps = []
    for batch in how(run.steps(run.loader(toy.data, batch_size=12), epochs=2)):
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        steps.append(batch.step)
        if batch.step == at:
            return steps
    return steps


def test_a_loop_whose_steps_a_variable_holds(toy, tmp_path, capfd):
    """Nobody says why it was left, nor closes the run: its last step is dropped, and that is said."""

    def cell():
        run = unisono.Run(seed=0, replicas=4, out=tmp_path, checkpoint_every=3)
        model = torch.nn.Linear(6, 4)
        model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        held = run.steps(run.loader(toy.data, batch_size=12), epochs=2)
        for batch in held:
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            if batch.step == 5:
                break

    cell()
    gc.collect()
    assert KEPT in capfd.readouterr().err
    assert stop_early(toy, tmp_path, 99, iter) == [4, 5, 6, 7, 8, 9, 10]


def test_a_cell_that_is_run_again(toy, tmp_path):
    """Each time it leaves its loop early, and makes a new run: no step is done twice."""
    assert stop_early(toy, tmp_path, 3, iter) == [1, 2, 3]
    assert stop_early(toy, tmp_path, 5, through) == [4, 5]
    assert stop_early(toy, tmp_path, 99, iter) == [6, 7, 8, 9, 10]


def through(items):
    with contextlib.closing(items):
        for each in items:  # noqa: UP028 - as programs do
            yield each


def numbers(found):
    for number in range(9):
        try:
            yield number
        except GeneratorExit:
            found.append(is_broken_off(sys._getframe()))
            raise


def leave(found, how, wrap):
    for number in wrap(numbers(found)):
        if number == 3 and how == "break":
            break
        if number == 3 and how == "return":
            return
        if number == 3 and how == "call":
            int("three")
        if number == 3 and how == "raise":
            raise ValueError


def generate(found, how):
    for number in numbers(found):
        if number == 3 and how == "raise":
            raise ValueError
        if number == 3 and how == "break":
            break
        yield number


@pytest.mark.parametrize("how", ["break", "return", "call", "raise"])
def test_how_a_loop_was_left(how):
    """Also through another generator, and in one that holds the loop."""
    found = []
    for wrap in (through, iter):
        with contextlib.suppress(ValueError):
            leave(found, how, wrap)
    if how in ("break", "raise"):
        with contextlib.suppress(ValueError):
            [*generate(found, how)]
    assert set(found) == {how in ("break", "return")}
    assert len(found) >= 2


def test_a_loop_that_something_else_holds():
    """Who closes it does not say why: not surely broken off."""
    found = []
    items = numbers(found)
    for number in items:
        if number == 3:
            break
    assert found == []
    items.close()
    assert found == [False]


PROGRAM = """
import sys, torch, unisono
from torch.nn import functional as F
run = unisono.Run(seed=0, replicas=2, out=sys.argv[1], checkpoint_every=3)
model = torch.nn.Linear(4, 2)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
x = torch.rand(40, 4, generator=torch.Generator().manual_seed(1))
for batch in run.steps(run.loader(unisono.ArrayDataset(x, (x[:, 0] > 0.5).long()), batch_size=4), epochs=1):
    run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    if batch.step == 5 and sys.argv[2] != "whole":
        if sys.argv[2] == "break":
            break
        raise OSError("away for a moment")
"""


@pytest.mark.parametrize(
    "command", some_are_slow([[], ["-m", "unisono", "run", "-n", "1"]], 1), ids=["python", "launcher"]
)
@pytest.mark.parametrize(("how", "steps"), [("break", 5), ("raise", 3)])
def test_a_program_that_does_not_close_its_run(tmp_path, command, how, steps):
    """``break`` is known as such; after an exception nothing of its step is kept."""
    script, out = tmp_path / "job.py", tmp_path / "run"
    script.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, *command, str(script), str(out), how], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode == 0, KEPT in ended.stderr) == (how == "break", how == "raise"), ended.stderr
    newest = store.list_steps(out / "checkpoints")[0][0]
    assert newest == steps
    assert (out / "result.json").exists() == (how == "break")
