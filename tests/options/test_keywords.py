"""Keywords that a function does not have are answered with what to write here."""

import inspect

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import unisono
from unisono.options.keywords import ANSWERS, answers_keywords


@pytest.fixture(scope="module")
def data():
    return unisono.ArrayDataset(torch.randn(56, 6), torch.arange(56) % 4)


@pytest.fixture(scope="module")
def trainer():
    with unisono.Run(replicas=2) as run:
        model = nn.Linear(6, 4)
        yield unisono.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.CrossEntropyLoss())


def test_every_keyword_of_torchs_loader_is_known_or_answered(trainer, data):
    """Whatever torch's DataLoader takes, `Run.loader` takes too or says what to write in its place."""
    known = inspect.signature(unisono.Run.loader).parameters
    theirs = inspect.signature(DataLoader).parameters.keys() - known - {"dataset"}
    assert len(theirs) > 8
    for name in theirs:
        with pytest.raises(unisono.ConfigError, match=rf"^Run\.loader\(\) has no {name}=[:.] (.* )?Hint: "):
            trainer.run.loader(data, batch_size=8, **{name: 1})


@pytest.mark.parametrize(
    ("call", "name", "said"),
    [
        (
            lambda trainer, data, more: trainer.fit(data, epochs=1, batch_size=8, **more),
            "collate_fn",
            "collate= is the",
        ),
        (lambda trainer, data, more: trainer.fit(data, epochs=1, batch_size=8, **more), "sampler", "Subset"),
        (lambda trainer, data, more: trainer.fit(data, **more), "train_dataloaders", r"fit\(train_set, batch_size="),
        (lambda trainer, data, more: trainer.evaluate(data, **more), "pin_memory", "leave it out"),
        (lambda trainer, data, more: trainer.predict(data, **more), "drop_last", "no sample is dropped"),
        (lambda trainer, data, more: trainer.run.evaluate(data, len, {}, **more), "shuffle", "evaluation keeps"),
    ],
)
def test_wherever_data_is_given(trainer, data, call, name, said):
    """`fit`, `evaluate` and `predict` answer as well, with the fix."""
    with pytest.raises(unisono.ConfigError, match=f"has no {name}=[:.] .*{said}"):
        call(trainer, data, {name: None})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda trainer, data: trainer.run.loader(data, bach_size=8), r"Run\.loader\(\) .*did you mean batch_size=\?"),
        (lambda trainer, data: trainer.fit(data, max_epochs=8), r"Trainer\.fit\(\) .*did you mean epochs=\?"),
        (lambda trainer, data: trainer.run.steps(data, epoch=8), r"Run\.steps\(\) .*did you mean epochs=\?"),
        (
            lambda *_: unisono.Run(0, 8),
            r"Run\(\) takes nothing without a name, got 2 values\. Hint: unisono\.Run\(seed=0, replicas=8\)\.$",
        ),
        (lambda *_: unisono.Trainer(1, 2, 3, 4), r"Trainer\(\) takes run, model, optimizer without .*: loss="),
        (lambda trainer, data: trainer.fit(data, 3), r"Trainer\.fit\(\) takes train_set without .*: epochs="),
        (lambda *_: unisono.Run(replica=2), r"Run\(\) has no replica=\. Hint: did you mean replicas=\?"),
        (lambda *_: unisono.Run(shuffle=True), r"Run\(\) .*keyword of Run\.loader\(\)\."),
        (
            lambda trainer, data: trainer.fit(torch.ones(4, 6), torch.ones(4), epochs=1, batch_size=2),
            r"Trainer\.fit\(\) takes .*unisono\.ArrayDataset\(inputs, targets\)",
        ),
        (lambda *_: unisono.Trainer(1, 2, 3), r"Trainer\(\) needs loss\. Hint: .*loss=torch\.nn"),
        (lambda trainer, data: trainer.run.evaluate(data, len), r"Run\.evaluate\(\) needs metrics\. Hint: run\.eval"),
        (lambda trainer, data: trainer.run.loader(batch_size=2), r"Run\.loader\(\) needs dataset\."),
        (lambda trainer, data: trainer.run.step(1.5), r"Run\.step\(\) needs loss_function\. Hint: run\.step\(batch, "),
        (lambda *_: unisono.CheckpointPolicy(kep=2), r"CheckpointPolicy\(\) has no kep=\. Hint: did you mean keep=\?"),
        (lambda *_: unisono.Run(epochz=2), r"Run\(\) has no epochz=\. Hint: did you mean epochs= of Run\.steps\(\)"),
        (lambda *_: unisono.Run(zzz=1), r"Run\(\) has no zzz=; it has seed, replicas, .*transport\."),
        (lambda *_: unisono.Trainer(1, 2, 3, criterion=4), r"Trainer\(\) .*did you mean loss=\?"),
        (lambda *_: unisono.Trainer(1, 2, 3, epochs=4), r"Trainer\(\) .*Run\.steps\(\), Trainer\.fit\(\)\."),
    ],
)
def test_what_nobody_knows_is_a_type_error_with_the_fix(trainer, data, call, said):
    """Misspelt, another library's word, another function's keyword, or none of these."""
    with pytest.raises(TypeError, match=f"^{said}"):
        call(trainer, data)


def test_what_a_function_has_is_passed_on(trainer, data):
    """Control: right keywords are not answered."""
    assert len(trainer.run.loader(data, batch_size=8, shuffle=False)) == 7


def test_what_other_libraries_do_not_need(trainer, data):
    """A missing batch size, and an optimizer that is to be prepared later, are told with the line to write."""
    for given in (data, DataLoader(data, batch_size=8)):
        with pytest.raises(TypeError, match=r"^Run\.loader\(\) needs batch_size\. Hint: .*its \.dataset: run\.loader"):
            trainer.run.loader(given)
    with pytest.raises(TypeError, match=r"^Run\.prepare\(\) needs optimizer\. Hint: .*once: model, optimizer = "):
        trainer.run.prepare(trainer.model)


def test_all_are_told_at_once():
    """Three settings of another library's trainer are three lines of one message."""
    with pytest.raises(unisono.ConfigError, match=r"no devices=.*\nIt has no logger=.*\nIt has no max_epochs=\. Hint"):
        unisono.Trainer(1, 2, 3, devices=2, logger=True, max_epochs=3)
    with pytest.raises(unisono.ConfigError, match=r"no replica=\. Hint: did you mean .*\nIt has no lr=\. Hint"):
        unisono.Run(replica=2, lr=0.1)
    with pytest.raises(unisono.ConfigError, match=r"no batch_size=\. Hint: run\.loader\("):
        unisono.Run(batch_size="32")
    with pytest.raises(TypeError, match=r"no replica=\. Hint: did you mean replicas=\?\nIt has no sed=\. Hint"):
        unisono.Run(replica=2, sed=0)


def test_a_functions_own_keyword_stays_its_own():
    """Control: what a function has is never answered, and its name and words are as before."""

    @answers_keywords
    def load(*, timeout: int, num_workers: int = 0) -> int:
        """Load."""
        return timeout

    assert "timeout" in ANSWERS
    assert load(timeout=3) == 3
    assert (load.__name__, load.__doc__) == ("load", "Load.")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda run, data: unisono.Run(lr=0.1), r"Run\(\) has no lr=\. Hint: the optimizer takes it"),
        (lambda *_: unisono.Run(fp16=True), r"Run\(\) has no fp16=\. Hint: precision='fp32', 'bf16' or 'fp16'\.$"),
        (lambda *_: unisono.Run(mixed_precision="no"), r"mixed_precision=\. Hint: precision='fp32', 'bf16'"),
        (lambda run, data: unisono.Run(accumulate_grad_batches=4), r"on each of 2 workers are Run\(replicas=8\)"),
        (lambda run, data: run.loader(data, per_gpu_batch_size=4), r"over all workers: 4 workers with 32 each are"),
        (lambda run, data: unisono.CheckpointPolicy(monitor="a", save_top_k=1), r"best='test_accuracy'\.\nIt .*keep=2"),
        (
            lambda run, data: run.loader(data.arrays, batch_size=4),
            r"a tuple of 2 arrays\. Hint: unisono\.ArrayDataset\(",
        ),
        (lambda run, data: run.loader(dict(zip("xy", data.arrays, strict=True)), batch_size=4), "a dict of 2 arrays"),
        (lambda run, data: run.loader(data, batch_size=8 / 2), r"got 4\.0\. Hint: 4; a // b has no decimals\."),
    ],
)
def test_what_other_libraries_call_otherwise(trainer, data, call, said):
    """The line to write, where the nearest name would say too little."""
    with pytest.raises(unisono.ConfigError, match=said):
        call(trainer.run, data)


def test_samples_in_a_tuple_stay_a_data_set(trainer):
    """Control: two samples of ten numbers, or many, are no inputs and targets."""
    for samples in ((torch.ones(10),) * 12, [torch.ones(10), torch.ones(10)], (torch.ones(2), torch.ones(2))):
        assert len(trainer.run.loader(samples, batch_size=2)) == len(samples) // 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: unisono.callbacks.EarlyStopping("test_loss", verbose=True),
            r"EarlyStopping\(\) has no verbose=\. Hint: leave",
        ),
        (lambda: unisono.callbacks.EMA(momentum=0.9), r"EMA\(\) has no momentum=\. Hint: did you mean decay="),
        (lambda: unisono.Accuracy(task="multiclass"), r"Accuracy\(\) has no task=\. Hint: .*unisono\.TorchMetric\("),
        (
            lambda: unisono.launch("train.py", workers=2),
            r"got the text 'train\.py'\. Hint: .* unisono run -n 2 train\.py",
        ),
        (
            lambda: unisono.ArrayDataset(torch.ones(2), None),
            r"expected arrays, got None \(NoneType\)\. Hint: numpy\.load",
        ),
        (lambda: unisono.F1(classes=3), r"^F1\(\) has no classes=\. Hint: did you mean num_classes=\?"),
        (lambda: unisono.ArrayDataset("x.npy", "y.npy"), r"got 'x\.npy' \(str\)\. Hint: numpy\.load"),
        (
            lambda: unisono.ArrayDataset(torch.ones(2), torch.ones(3)),
            r"lengths \[2, 3\]\. Hint: inputs and targets of one",
        ),
        (lambda: unisono.Run(strategy="FSDP"), r"got 'FSDP'\. Hint: did you mean 'fsdp'\?"),
    ],
)
def test_parts_of_a_training_answer_too(call, said):
    """Callbacks, metrics, data sets and launches; in the test's own classes Python answers."""
    with pytest.raises((TypeError, ValueError, unisono.UnisonoError), match=said):
        call()

    class Own(unisono.Callback):
        def __init__(self, kept):
            self.kept = kept

    with pytest.raises(TypeError, match=r"__init__\(\) got an unexpected keyword argument 'verbose'"):
        Own(verbose=True)
    assert unisono.callbacks.Plateau("test_loss", patience=1)  # control: what passes all on is left alone


def test_a_result_says_where_a_number_stands():
    """By the name of a score, and as an attribute; what there is not is a KeyError still."""
    result = unisono.Result(fingerprint="00", metrics={"test_loss": 0.5})
    with pytest.raises(KeyError, match=r"Hint: result\['metrics'\]\['test_loss'\]"):
        result["test_loss"]
    with pytest.raises(KeyError, match="It has fingerprint, metrics"):
        result["nothing"]
    with pytest.raises(AttributeError, match=r"Hint: result\['fingerprint'\]"):
        result.fingerprint  # noqa: B018
    assert result.get("test_loss") is None and not hasattr(result, "test_loss")


def test_an_evaluation_says_what_to_write(trainer):
    """An error of the model over test data has the hint of the training, and type and shape of the batch."""
    data = unisono.ArrayDataset(torch.ones(6, 6).double(), torch.arange(6) % 4)
    with pytest.raises(RuntimeError, match="dtype") as caught:
        trainer.evaluate(data)
    assert caught.value.__notes__[0] == "while evaluating batch 1 of 1: x float64 (6, 6), y int64 (6,) from 0 to 3"
    assert "images.astype('float32')" in caught.value.__notes__[1]
