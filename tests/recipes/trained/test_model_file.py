"""``model.json`` is written once, by a run that holds its directory, and read with suspicion."""

import json

import pytest

import trained_runs
import unisono
from unisono.errors import ConfigError, ScoreMismatch
from unisono.recipes.trained.model_file import ModelFile

FILE = ModelFile(
    recipe="text",
    model={"name": "bag"},
    inputs={"kind": "texts", "max_length": None, "encoding": "utf-8", "text_column": "text"},
    classes=("neg", "pos"),
    threads=2,
    files={"vocabulary.json": b'["<pad>"]'},
)


def test_it_comes_back_as_it_was(tmp_path):
    """With its further files; a second save writes nothing, another content does."""
    FILE.save(tmp_path / "run")
    assert ModelFile.read(tmp_path / "run") == FILE
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["model.json", "vocabulary.json"]
    before = (tmp_path / "run" / "model.json").stat().st_ino
    FILE.save(tmp_path / "run")
    assert (tmp_path / "run" / "model.json").stat().st_ino == before
    changed = {**json.loads((tmp_path / "run" / "model.json").read_text()), "precision": "bf16"}
    (tmp_path / "run" / "model.json").write_text(json.dumps(changed))
    assert ModelFile.read(tmp_path / "run").precision == "bf16"
    FILE.save(tmp_path / "run")
    assert ModelFile.read(tmp_path / "run") == FILE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told.pop("classes"), "model.json' is not what the run has written"),
        (lambda told: told.update(model=[]), "model.json' is not what the run has written"),
        (lambda told: told["inputs"].update(kind="sounds"), "model.json' is not what the run has written"),
        (lambda told: told["inputs"].pop("encoding"), "model.json' is not what the run has written"),
        (lambda told: told["files"].update({"../secret": "0"}), "secret' is not what the run has written"),
        (lambda told: told["files"].update({"vocabulary.json": "0"}), "vocabulary.json' is not what the run"),
        (lambda told: told.update(recipe="../evil"), "expected one of the recipes"),
        (lambda told: told.update(model={"vocabulary": "x"}), "describes no model of recipe 'text'"),
    ],
)
def test_a_changed_file_is_refused(tmp_path, change, words):
    """Missing and foreign entries, paths out of the directory, arguments that build no model: one line each."""
    FILE.save(tmp_path)
    (tmp_path / "secret").write_bytes(b"")
    told = json.loads((tmp_path / "model.json").read_text())
    change(told)
    (tmp_path / "model.json").write_text(json.dumps(told))
    with pytest.raises(ConfigError, match=words) as caught:
        unisono.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_what_holds_no_model_is_said(tmp_path):
    """Nothing, a file, a directory of another kind, a file that is no JSON."""
    (tmp_path / "file").write_text("x")
    for name, words in (("none", "which does not exist"), ("file", "which is a file"), (".", "holds no model.json")):
        with pytest.raises(ConfigError, match=words):
            unisono.load(tmp_path / name)
    (tmp_path / "program.json").write_text(json.dumps({"script": "/home/me/cnn.py", "args": []}))
    with pytest.raises(ConfigError, match=r"trained by '/home/me/cnn\.py', .*Hint: build the model, unisono\.load"):
        unisono.load(tmp_path)
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(ConfigError, match="is not the JSON that a run writes"):
        unisono.load(tmp_path)


def test_the_classes_fit_on_a_line():
    """All of a few; of many the first, and how many more; control characters are spelled out."""
    listed = [ModelFile(recipe="text", model={}, inputs={}, classes=tuple(names)).listed_classes(20) for names in
              (("cat", "dog"), map(str, range(100)), ("a" * 50, "b"), ("\x1b[1m",))]  # fmt: skip
    assert listed == ["cat, dog", "0, 1, 2, 3, 4, 5, 6 and 93 more", f"{'a' * 50} and 1 more", "\\x1b[1m"]


def test_a_run_of_other_data_is_not_described_anew(tmp_path, capsys):
    """Who may not go on with a run directory does not write there; its classes were told before the first step."""
    trained = trained_runs.images(tmp_path)
    assert "2 classes: cat, dog\n" in capsys.readouterr().err
    before = (trained.run / "model.json").read_bytes()
    (tmp_path / "own" / "train" / "bird").mkdir()
    (trained.files[0]).rename(tmp_path / "own" / "train" / "bird" / "0.png")
    with pytest.raises(ScoreMismatch):
        trained_runs.train("images", tmp_path, model="cnn", data=str(tmp_path / "own"))
    assert (trained.run / "model.json").read_bytes() == before
    (trained.run / "model.json").unlink()
    (tmp_path / "own" / "train" / "bird" / "0.png").rename(trained.files[0])
    (tmp_path / "own" / "train" / "bird").rmdir()
    trained_runs.train("images", tmp_path, model="cnn", data=str(tmp_path / "own"))  # done already
    assert (trained.run / "model.json").read_bytes() == before
