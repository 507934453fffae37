"""What somebody is told who has mistaken a shape, a dtype, a name or an order of arguments: the line to write."""

import traceback
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.data.batches import described
from unisono.observe.result import Result

X, Y = np.zeros((16, 4), np.float32), np.arange(16) % 3


def told(fails: Callable[[], object]) -> str:
    """Return what is shown at the end of a program that fails, from the message on."""
    with pytest.raises(Exception) as caught:
        fails()
    error = caught.value
    return "".join(traceback.format_exception_only(error))


@pytest.fixture
def run() -> Iterator[unisono.Run]:
    with unisono.Run(seed=0, replicas=2) as made:
        yield made


def trained(run, x=X, y=Y, *, width=3, loss=None, model=None):
    """Do one step of a linear model, and return its loss."""
    model = model or nn.Linear(4, width)
    prepared = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch = next(run.steps(run.loader(unisono.ArrayDataset(x, y), batch_size=8), epochs=1))
    usual = loss or (lambda made, micro: F.cross_entropy(made[0](micro.x), micro.y))
    return run.step(batch, lambda micro: usual(prepared, micro))


SHAPES = "a micro-batch of 4 samples: x {x} (4, 4), y {y} (4,)"
MICRO_BATCHES = {
    "too few features": ({"model": nn.Linear(2, 3)}, SHAPES.format(x="float32", y="int64"), "cannot be multiplied"),
    "float64": ({"x": X.astype("float64")}, SHAPES.format(x="float64", y="int64"), "images.astype('float32')"),
    "uint8": ({"x": X.astype("uint8")}, "x uint8 (4, 4) from 0 to 0", "images.astype('float32') / 255"),
    "float targets": ({"y": Y.astype("float32")}, "y float32 (4,)", "labels.astype('int64')"),
    "too few classes": ({"width": 1}, "y int64 (4,) from ", "the model needs one output for each"),
    "model = prepare()": ({"loss": lambda made, micro: made(micro.x)}, "", "model, optimizer = run.prepare("),
    "micro['x']": (
        {"loss": lambda made, micro: micro["x"]},
        "",
        "Hint: the micro-batch is a pair: micro.x and micro.y.",
    ),
    "a trainer's loss": ({"loss": lambda made, micro: micro.x.y}, "", "A Trainer calls loss(output, target)"),
}


@pytest.mark.parametrize("case", MICRO_BATCHES)
def test_a_failed_loss_says_what_it_was_given(run, case):
    """Names, dtypes, shapes, the range of class numbers; and the line, where it is known."""
    how, shown, hint = MICRO_BATCHES[case]
    said = told(lambda: trained(run, **how))
    assert shown in said and hint in said, said


def trainer(run, **how):
    """Return a trainer of a linear model."""
    model = nn.Linear(4, 3)
    return unisono.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), **how)


DATA = unisono.ArrayDataset(X, Y)
LOSS = {"loss": nn.CrossEntropyLoss()}
CALLS = {
    "fit(X, Y)": (lambda run: trainer(run, **LOSS).fit(X, Y, epochs=1, batch_size=8), "unisono.ArrayDataset(inputs"),
    "fit(model, data)": (lambda run: trainer(run, **LOSS).fit(nn.Linear(4, 3), DATA), "models are given before"),
    "fit(data)": (lambda run: trainer(run, **LOSS).fit(DATA), "trainer.fit(dataset, epochs=1, batch_size=64)"),
    "no epochs": (lambda run: trainer(run, **LOSS).fit(DATA, batch_size=8), "trainer.fit(..., epochs=1)"),
    "loader(X, Y)": (lambda run: run.loader(X, Y, batch_size=8), "unisono.ArrayDataset(inputs"),
    "loader((X, Y))": (lambda run: run.loader((X, Y), batch_size=8), "Hint: unisono.ArrayDataset(inputs, targets)"),
    "no loss": (trainer, "loss=torch.nn.CrossEntropyLoss()"),
    "no run": (lambda run: unisono.Trainer(nn.Linear(4, 3), None, run, **LOSS), "expected the run first, got Linear"),
    "prepared": (lambda run: (trained(run), trainer(run, **LOSS)), "a Trainer prepares by itself"),
    "metric class": (lambda run: trainer(run, **LOSS, metrics={"a": unisono.Accuracy}), "{'a': Accuracy()}"),
    "callback class": (lambda run: trainer(run, **LOSS, callbacks=[unisono.Callback]), "callbacks=[Callback(...)]"),
    "not prepared": (lambda run: run.fingerprint(), "model, optimizer = run.prepare(model, optimizer)"),
    "world": (lambda run: run.world.global_rank, "a World has no 'global_rank'. Hint: world.rank."),
    "leader": (lambda run: run.world.is_main_process, "Hint: world.is_leader."),
    "rank": (lambda run: run.process_index, "Hint: run.world.rank."),
    "weights": (lambda run: unisono.load_weights(nn.Linear(4, 3), "runs/none"), "'runs/none' (in "),
    "weights first": (lambda run: unisono.load_weights("x.pt", nn.Linear(4, 3)), "unisono.load_weights(model,"),
    "result": (lambda run: Result(metrics={"a": 1}).metrics, "Hint: result['metrics']."),
    "metric": (lambda run: Result(metrics={"a": 1})["a"], "Hint: result['metrics']['a']."),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_wrong_call_is_answered_with_the_line_to_write(run, case):
    """Whatever was given in another order, in another library's words, or not at all."""
    call, expected = CALLS[case]
    said = told(lambda: call(run))
    assert expected in said and "Did you mean" not in said, said


def test_evaluation_says_which_batch_failed(run):
    """And what it was made of."""
    small = unisono.ArrayDataset(X[:, :2], Y)
    trainer_ = trainer(run, **LOSS)
    said = told(lambda: trainer_.fit(DATA, test_set=small, epochs=1, batch_size=8))
    assert "while evaluating batch 1 of 1: x float32 (16, 2), y int64 (16,) from 0 to 2" in said


def test_frames_of_this_package_are_left_out_where_the_message_says_it_all(run):
    """Of a refusal only the program's own lines are shown; an error of the program's own code keeps its frames."""
    with pytest.raises(unisono.ConfigError) as caught:
        run.loader((X, Y), batch_size=8)
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files == [__file__], files


def test_what_has_no_range_is_described_without_one():
    """An error that is explained is never hidden by another one."""
    sparse, pair = torch.eye(2, dtype=torch.int64).to_sparse(), {"a": torch.zeros(2, dtype=torch.uint16), "b": "text"}
    nested = torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)], layout=torch.jagged)
    assert described(sparse) == "int64 (2, 2)" and described(pair) == "a uint16 (2,)"
    assert described(torch.zeros(0, dtype=torch.int64)) == "int64 (0,)" and described(nested).startswith("float32 (2, ")
    assert described(torch.ones(2, dtype=torch.bool)) == "bool (2,)" and described("text") == ""
