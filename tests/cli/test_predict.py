"""``unisono predict``: a table for people, lines of JSON for programs, one line for what is wrong."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import trained_runs
from unisono.cli.main import unisono as command
from unisono.recipes import lm_presets


@pytest.fixture(autouse=True)
def _switches():
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return trained_runs.images(tmp_path_factory.mktemp("images"))


def call(*arguments, given=None):
    done = CliRunner().invoke(command, ["predict", *map(str, arguments)], input=given)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_the_accuracy_is_that_of_the_run(images):
    """Over the test set's files, exactly; the switches are set as the run had them."""
    torch.set_num_threads(2)
    code, out, error = call(images.run, "-", "--json", given="\n".join(map(str, images.files)))
    assert (code, error, torch.get_num_threads()) == (0, "images, step 6\n", 1)
    found = [row["class"] for row in json.loads(out)]
    share = sum(one == label for one, label in zip(found, images.labels, strict=True)) / len(found)
    assert share == images.metrics["test_accuracy"]


def test_a_table(images):
    """A line for each file, in 80 columns, long names shortened from the left; which model it was is told beside it."""
    code, out, error = call(images.run, *images.files[:3])
    lines = out.splitlines()
    assert (code, lines[0].split(), len(lines)) == (0, ["item", "class", "p", "then"], 4)
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("...")
    assert lines[1].split()[0].endswith("/test/cat/00.png")
    assert error == "images, step 6\n"
    assert call(images.run, images.files[0], "--top", "1")[1].splitlines()[0].split() == ["item", "class", "p"]
    assert call(images.run, images.files[0], "--checkpoint", "3")[2] == "images, step 3\n"


def test_texts_on_standard_input(tmp_path):
    """A text a line; with --json what each is called, its class, and the likeliest classes."""
    trained = trained_runs.texts(tmp_path, "bag")
    code, out, error = call(trained.run, "-", "--json", given="a good film\nbad, poor\n")
    first, second = json.loads(out)
    assert (code, error[:11], first["item"], second["item"]) == (0, "text, step ", "text 1", "text 2")
    assert set(first["top"]) == {"neg", "pos"}
    assert sum(first["top"].values()) == pytest.approx(1)
    assert first["probability"] == first["top"][first["class"]]
    assert "then" in call(trained.run, "-", given="good")[1]
    for given, words in (("", "found nothing"), ("a\n\nb", "text 2: expected a text"), (b"\xff", "expected UTF-8")):
        code, out, error = call(trained.run, "-", given=given)
        assert (code, out, error.count("\n")) == (2, "", 1)
        assert words in error
    assert "no use for --resize" in call(trained.run, trained.files[0], "--resize")[2]


def test_a_language_model_goes_on(tmp_path, monkeypatch):
    """Tokens and perplexity of each text, and what the model adds; the same for the same seed."""
    pytest.importorskip("tokenizers", reason="needs the extra recipes")
    settings = lm_presets.Settings(vocabulary=512, shape=trained_runs.TINY, lr=1e-2, dropout=0.0)
    monkeypatch.setitem(lm_presets.PRESETS, "small", settings)
    run = trained_runs.stories(tmp_path).run
    code, out, _ = call(run, "-", "--write", "8", given="the cat\na dog\n")
    assert code == 0
    assert out.splitlines()[0].split() == ["item", "tokens", "perplexity"]
    assert "text 2:" in out.splitlines()
    told = [call(run, "-", "--write", 8, "--json", *more, given="the cat") for more in ((), (), ("--top", "1"))]
    assert told[0] == told[1]
    assert set(json.loads(told[2][1])[0]) == {"item", "tokens", "perplexity", "written"}


def test_what_is_wrong_is_one_line(images, tmp_path):
    """No run, a run without a model, no image, another size, no such checkpoint or device: code 2."""
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "small.png")
    (tmp_path / "text.png").write_text("text")
    file = images.files[0]
    for arguments, words in (
        ((tmp_path / "none", file), "which does not exist"),
        ((tmp_path, file), "holds no model.json"),
        ((images.run, tmp_path / "none.png"), "none.png: expected an image, found nothing"),
        ((images.run, file, tmp_path / "text.png"), "text.png: expected an image"),
        ((images.run, tmp_path), "found a directory"),
        ((images.run, tmp_path / "small.png"), "expected 9 x 8 pixels (width x height) as in training, found 3 x 3"),
        ((images.run, file, "--checkpoint", "5"), "one of the steps 6, 3"),
        ((images.run, file, "--checkpoint", "newest"), "last, best or a step"),
        ((images.run, file, "--write", "5"), "has no use for --write"),
        ((images.run, file, "--device", "tpu"), "'cpu', 'cuda' or 'cuda:N'"),
    ):
        code, out, error = call(*arguments)
        assert (code, out, error.count("\n")) == (2, "", 1), error
        assert words in error
    assert call(images.run, tmp_path / "small.png", "--resize")[0] == 0
