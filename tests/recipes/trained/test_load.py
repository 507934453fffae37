"""`unisono.load`: the run directory alone gives back the model that was evaluated."""

import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import trained_runs
import unisono
from unisono.checkpoint.store import list_steps
from unisono.determinism.switches import set_determinism
from unisono.recipes import lm_presets
from unisono.recipes.trained.model_file import ModelFile
from unisono.train.run_directory.upkeep import describe_checkpoints

MAKERS = {
    "digits": trained_runs.digits,
    "images": trained_runs.images,
    "gcnn": trained_runs.texts,
    "bag": lambda folder: trained_runs.texts(folder, "bag", lr=0.05, max_length=20),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that trains what is asked for, once."""
    runs = {}

    def make(name):
        if name not in runs:
            runs[name] = MAKERS[name](tmp_path_factory.mktemp(name))
        return runs[name]

    return make


@pytest.fixture
def run(made, tmp_path):
    """A copy of the images' run that a test may break, and its files."""
    trained = made("images")
    return trained._replace(run=shutil.copytree(trained.run, tmp_path / "run"))


def accuracy(found, labels) -> float:
    assert len(found) == len(labels)
    return sum(row["class"] == label for row, label in zip(found, labels, strict=True)) / len(labels)


def loss(found, labels) -> float:
    return -sum(math.log(row["top"][label]) for row, label in zip(found, labels, strict=True)) / len(found)


@pytest.mark.parametrize("name", MAKERS)
def test_the_test_sets_files_give_the_accuracy_of_the_run(made, name):
    """Exactly: they are read, cut, normalised and batched as in the run's own evaluation; in another process or not."""
    trained = made(name)
    shutil.rmtree(trained.run.parent / "cache", ignore_errors=True)  # the run directory is enough
    set_determinism(1)
    found = unisono.load(trained.run).predict(trained.files)
    assert accuracy(found, trained.labels) == trained.metrics["test_accuracy"]
    assert [row["item"] for row in found] == list(map(str, trained.files))
    assert 0 < trained.metrics["test_accuracy"] < 1
    loss = -sum(
        math.log(row["top"][label]) for row, label in zip(found, trained.labels, strict=True) if len(row["top"]) < 3
    )
    if len(found[0]["top"]) < 3:  # all classes are told
        assert loss / len(found) == pytest.approx(trained.metrics["test_loss"], rel=1e-6)


def test_another_normalisation_is_noticed(run):
    """The control: with another mean in model.json the images' scores are others."""
    before = unisono.load(run.run).predict(run.files)
    assert unisono.load(run.run).predict(run.files) == before
    told = json.loads((run.run / "model.json").read_text())
    told["inputs"]["mean"][0] += 0.2
    (run.run / "model.json").write_text(json.dumps(told))
    assert [row["probability"] for row in unisono.load(run.run).predict(run.files)] != [
        r["probability"] for r in before
    ]


def test_the_model_is_ready_to_call(run):
    """Evaluation mode, no gradients, classes by name; the caller's random numbers stay as they were."""
    before = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]
    model = unisono.load(run.run)
    scores = model(torch.zeros(3, 3, 8, 9))
    assert (scores.shape, scores.requires_grad, model.module.training) == ((3, 2), False, False)
    assert (model.classes, model.recipe, model.step) == (("cat", "dog"), "images", 6)
    assert repr(model) == "TrainedModel(images, step 6, 2 classes)"
    arrays = [np.asarray(Image.open(file)) for file in run.files[:2]]
    by_path, by_array, by_image = (
        [row["probability"] for row in model.predict(items)]
        for items in (run.files[:2], arrays, [Image.fromarray(array) for array in arrays])
    )
    assert by_path == by_array == by_image
    for one in (run.files[0], str(run.files[0]), Image.fromarray(arrays[0]), np.zeros((8, 9), np.uint8)):
        with pytest.raises(unisono.ConfigError, match=r"expected a list of items, got one \w+. Hint: predict\(\[item"):
            model.predict(one)
    with pytest.raises(unisono.DataError, match=r"image 1: .* found float64 .*Hint: a list of images"):
        model.predict([np.zeros((8, 9))])
    with pytest.raises(AttributeError, match=r"no 'parameters': .*Hint: model\.module\.parameters"):
        model.parameters()
    after = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_a_language_model(tmp_path, monkeypatch):
    """Documents of the held-out file have together the perplexity of the run; the model goes on with a text."""
    pytest.importorskip("tokenizers", reason="needs the extra recipes")
    settings = lm_presets.Settings(vocabulary=512, shape=trained_runs.TINY, lr=1e-2, dropout=0.1)
    monkeypatch.setitem(lm_presets.PRESETS, "small", settings)
    trained = trained_runs.stories(tmp_path)
    model = unisono.load(trained.run)
    found = model.predict(trained.files)
    assert [row["item"] for row in found] == [f"{trained.files[0]}, text {number}" for number in range(1, 7)]
    assert max(row["tokens"] for row in found) > trained_runs.TINY["length"]  # a document of several rows
    tokens = sum(row["tokens"] for row in found)
    pooled = math.exp(sum(row["tokens"] * math.log(row["perplexity"]) for row in found) / tokens)
    assert pooled == pytest.approx(trained.metrics["test_perplexity"], rel=1e-6)
    first, *_ = (step for step, _ in reversed(list_steps(trained.run / "checkpoints")))
    earlier = unisono.load(trained.run, checkpoint=first).predict(trained.files)
    assert earlier[0]["perplexity"] > 1.01 * found[0]["perplexity"]  # the control
    said = model.write("the cat", tokens=20, seed=1)
    assert said == model.write("the cat", tokens=20, seed=1) != model.write("the cat", tokens=20, seed=2)
    with pytest.raises(unisono.ConfigError, match="expected a list of items, got one str"):
        model.predict("the cat")


def test_which_checkpoint(run):
    """The last, a step, or the best of those that are kept; what is none of them is refused."""
    last, first = (step for step, _ in list_steps(run.run / "checkpoints"))
    assert (unisono.load(run.run).step, unisono.load(run.run, checkpoint=first).step) == (last, first)
    scores = [
        row["metrics"]["test_accuracy"] for row in describe_checkpoints(run.run / "checkpoints", is_thorough=False)
    ]
    assert unisono.load(run.run, checkpoint="best").step == (last if scores[0] >= scores[1] else first)
    with pytest.raises(TypeError, match=r"^load\(\) has no step=. Hint: did you mean checkpoint=\?"):
        unisono.load(run.run, step=3)
    for wrong, words in (("7", "one of the steps"), (True, "checkpoint"), ("newest", "last, best or a step")):
        with pytest.raises(unisono.ConfigError, match=words):
            unisono.load(run.run, checkpoint=wrong)


def test_a_damaged_checkpoint_is_passed_over(run):
    """The newest that is whole is taken, and that is told; where none is, or it was asked for, that is an error."""
    (last, newest), (first, older) = list_steps(run.run / "checkpoints")
    for path, left in ((newest, first), (older, None)):
        data = bytearray((path / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (path / "model.safetensors").write_bytes(data)
        if left is not None:
            with pytest.warns(UserWarning, match=r"checkpoint skipped: .*model\.safetensors is damaged"):
                assert unisono.load(run.run).step == left
    for asked in (last, "last"):
        with pytest.raises(unisono.CheckpointError, match="damaged"):
            unisono.load(run.run, checkpoint=asked)
    shutil.rmtree(run.run / "checkpoints")
    with pytest.raises(unisono.ConfigError, match=r"expected a run directory, got .*without checkpoints"):
        unisono.load(run.run)


def test_autocast_is_part_of_the_model(tmp_path):
    """A run under bfloat16 is asked under bfloat16: the accuracy and the loss are those of the run."""
    trained = trained_runs.images(tmp_path, bf16=True)
    set_determinism(1)
    model = unisono.load(trained.run)
    found = model.predict(trained.files)
    assert accuracy(found, trained.labels) == trained.metrics["test_accuracy"]
    assert ModelFile.read(trained.run).precision == "bf16"
    assert loss(found, trained.labels) == pytest.approx(trained.metrics["test_loss"], rel=1e-6)


@pytest.mark.slow
def test_a_run_that_goes_on(tmp_path):
    """While a run trains, its model is there, ever newer."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "unisono", "train", "digits", "-n", "1", "--epochs", "5000", "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--checkpoint-every", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while not list_steps(out / "checkpoints"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        steps = [unisono.load(out).step for _ in range(40)]
        while steps[-1] == steps[0] and time.monotonic() < deadline:
            steps.append(unisono.load(out).step)
        assert process.poll() is None
        assert steps == sorted(steps)
        assert steps[-1] > steps[0]
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.mnist
def test_real_digits(tmp_path):
    """The real test images of MNIST, as files."""
    from unisono.data.sets.mnist import load_mnist

    given = os.environ.get("UNISONO_TEST_DATA")
    folder = (Path(given) if given else Path(__file__).parents[4] / "shared" / "data") / "mnist"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set UNISONO_TEST_DATA to the directory that holds mnist/")
    run = trained_runs.train("mnist", tmp_path, model="cnn", data=str(folder), epochs=1, batch_size=64, limit=2000)
    splits = load_mnist(folder, cache=tmp_path / "cache")
    chosen = np.arange(2000) * 10_000 // 2000
    files = [tmp_path / f"{number:05}.png" for number in chosen]
    for file, image in zip(files, splits.test_images[chosen], strict=True):
        Image.fromarray(image).save(file)
    set_determinism(1)
    found = unisono.load(run).predict(files)
    told = json.loads((run / "result.json").read_text())["metrics"]["test_accuracy"]
    assert accuracy(found, [str(label) for label in splits.test_labels[chosen]]) == told > 0.8
