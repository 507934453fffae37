"""What somebody is told who has mistaken a shape, a dtype, a name or an order of arguments: the line to write."""

import sys
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
from unisono.system.hints import of_a_mistake
from unisono.system.messages import says_all, show_own_lines
from unisono.system.words import counted
from unisono.train.steps.loop import Batch

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
    "no class dimension": (
        {"loss": lambda made, micro: F.cross_entropy(made[0](micro.x)[:, 0], micro.y)},
        "",
        "the model's outputs are (samples, classes), not (samples,).",
    ),
    "a class too many": (
        {"loss": lambda made, micro: (made[0](micro.x) - micro.y).square().mean()},
        "",
        "outputs and targets need one shape, (n,) or (n, k) both",
    ),
    "no probabilities": (
        {"loss": lambda made, micro: F.binary_cross_entropy(made[0](micro.x)[:, 0] + 9, micro.y.float())},
        "",
        "binary_cross_entropy_with_logits(model(micro.x), target)",
    ),
    "a column": (
        {"loss": lambda made, micro: F.binary_cross_entropy(made[0](micro.x)[:, :1].sigmoid(), micro.y.float())},
        "",
        "model(micro.x).squeeze(1)",
    ),
    "nn.CrossEntropyLoss(x, y)": (
        {"loss": lambda made, micro: nn.CrossEntropyLoss(made[0](micro.x), micro.y)},
        "",
        "nn.CrossEntropyLoss()(model(micro.x), micro.y)",
    ),
    "cast in the loss": ({"loss": lambda made, micro: made[0](micro.x.long()).sum()}, "", ".float() in the loss, or"),
    ".numpy()": ({"loss": lambda made, micro: made[0](micro.x.numpy()).sum()}, "", "leave .numpy() out"),
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


class Broken:
    """A data set that fails where it fetches."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {}["label"]


def stepped(run, loader):
    return next(run.steps(loader, epochs=1))


OWN_LINES = {
    "a refusal": (lambda run: run.loader((X, Y), batch_size=8), 1),
    "a keyword": (lambda run: unisono.Run(batch_size="32"), 1),
    "a position": (lambda run: run.loader(DATA, 8), 1),
    "nothing given": (lambda run: run.prepare(), 1),
    "too many names": (lambda run: unpacked(run), 2),
    "no data": (lambda run: run.steps(epochs=3), 1),
    "no model": (lambda run: run.load_weights("none.pt"), 1),
    "a loss": (lambda run: run.step(stepped(run, prepared(run)), lambda x, y: x), 1),
    "a tensor": (lambda run: run.step(stepped(run, prepared(run)), torch.ones(1)), 1),
    "a data set": (lambda run: stepped(run, prepared(run, Broken())), 3),
}
UNCAUGHT = {
    "batch.x": lambda run: stepped(run, prepared(run)).x,
    "x, y = batch": lambda run: [*stepped(run, prepared(run))],
    "batch[0]": lambda run: stepped(run, prepared(run))[0],
    "len(batch)": lambda run: len(stepped(run, prepared(run))),
    "run.save": lambda run: run.save("x.pt"),
    "loader.dataset": lambda run: prepared(run).dataset,
    "for x, y in loader": lambda run: [*prepared(run)],
    "run.world.size": lambda run: run.world.global_rank,
    "unisono.Accelerator": lambda run: unisono.Accelerator,
    "optimizer.step": lambda run: foreign(run).step(),
    "run.record": lambda run: run.record(loss="low"),
}


def prepared(run, data=DATA):
    """Return a loader of a run that has a model."""
    model = nn.Linear(4, 3)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return run.loader(data, batch_size=8)


def foreign(run):
    """Return a run's optimizer."""
    model = nn.Linear(4, 3)
    return run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))[1]


def unpacked(run):
    model = nn.Linear(4, 3)
    model, _optimizer, _scheduler, _loader = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


def lines_of(error):
    """Return the files of an error's traceback, the outermost first, without this file's `told`."""
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)][1:]


@pytest.mark.parametrize("case", OWN_LINES)
def test_frames_of_this_package_are_left_out_where_the_message_says_it_all(run, case):
    """Of what is refused, and of what the program's own code raises, only the program's own lines are shown."""
    call, count = OWN_LINES[case]
    with pytest.raises(Exception) as caught:
        call(run)
    assert lines_of(caught.value) == [__file__] * count


@pytest.mark.parametrize("case", UNCAUGHT)
def test_frames_of_this_package_are_left_out_of_what_nobody_catches(run, case):
    """Where an attribute or an operation of an object of ours is answered."""
    with pytest.raises(Exception) as caught:
        UNCAUGHT[case](run)
    show_own_lines(caught.value)
    assert says_all(caught.value) and set(lines_of(caught.value)) == {__file__}


def test_a_fault_of_this_package_keeps_its_frames():
    """The control: nothing was raised on purpose, and no line of the program follows."""
    with pytest.raises(TypeError) as caught:
        counted(None, "step")
    before = lines_of(caught.value)
    show_own_lines(caught.value)
    assert lines_of(caught.value) == before and len(before) == 1 and not says_all(caught.value)


MEANINGS = {
    "no GPU": (lambda: nn.Linear(2, 2).cuda(), "leave .cuda() and .to('cuda') out"),
    "DDP": (lambda: nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), "leave DistributedDataParallel() out"),
    "a collective": (torch.distributed.get_rank, "run.world.rank"),
    "a group": (lambda: torch.distributed.init_process_group("gloo"), "leave init_process_group() out"),
    "a pair": (lambda: (nn.Linear(2, 2), None).parameters(), "model, optimizer = run.prepare(model, optimizer)"),
    "a pair called": (lambda: tuple.__new__(tuple, (X,))(X), "model, optimizer = run.prepare(model, optimizer)"),
    "**batch": (lambda: dict(**Batch(1, 0, Y, iter(()))), "lambda micro: model(**micro).loss"),
    "a result called": (lambda: torch.ones(2).mean()(), "Hint: a result has taken a function's name"),
    "other shapes": (lambda: nn.Linear(9, 3)(torch.ones(2, 4)), "nn.Linear(9, 3) was given 2 rows of 4 numbers."),
    "another dtype": (lambda: nn.Linear(4, 3)(torch.ones(2, 4).double()), "Hint: inputs need the dtype of the weights"),
    "another dtype in a product": (lambda: torch.bmm(torch.ones(1, 2, 2).double(), torch.ones(1, 2, 2)), "x.float()"),
    "other": (lambda: {}["x"], ""),
}


@pytest.mark.parametrize("case", MEANINGS)
@pytest.mark.skipif(torch.cuda.is_available() or torch.distributed.is_initialized(), reason="these do not fail here")
def test_what_an_error_from_elsewhere_means_in_a_program_that_has_a_run(case, monkeypatch):
    """The line to write, for what torch or Python says; a program without a run is told nothing about runs."""
    call, expected = MEANINGS[case]
    with pytest.raises(Exception) as caught:
        call()
    assert expected in of_a_mistake(caught.value) and bool(of_a_mistake(caught.value)) == bool(expected)
    monkeypatch.delitem(sys.modules, "unisono.train.run")
    assert case == "a pair" or not of_a_mistake(caught.value)


def test_a_name_that_is_imported_and_is_not_there_is_answered_too():
    """Python keeps only the words of an ImportError; who asks by `hasattr` gets an answer."""
    with pytest.raises(
        ImportError, match=r"no attribute 'Accelerator'\. Hint: from unisono\.compat\.accelerate import"
    ):
        exec("from unisono import Accelerator")
    assert not hasattr(unisono, "Accelerator")


def test_what_has_no_range_is_described_without_one():
    """An error that is explained is never hidden by another one."""
    sparse, pair = torch.eye(2, dtype=torch.int64).to_sparse(), {"a": torch.zeros(2, dtype=torch.uint16), "b": "text"}
    nested = torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)], layout=torch.jagged)
    assert described(sparse) == "int64 (2, 2)" and described(pair) == "a uint16 (2,)"
    assert described(torch.zeros(0, dtype=torch.int64)) == "int64 (0,)" and described(nested).startswith("float32 (2, ")
    assert described(torch.ones(2, dtype=torch.bool)) == "bool (2,)" and described("text") == ""
