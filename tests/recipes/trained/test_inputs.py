"""What cannot be what the model knows is named before anything is computed."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unisono.data.sets.text import Vocabulary
from unisono.errors import DataError
from unisono.recipes.trained import inputs
from unisono.recipes.trained.model_file import ModelFile

GREY = {"kind": "images", "shape": [4, 5, 1], "mean": [0.5], "std": [0.25]}
COLOUR = {"kind": "images", "shape": [4, 5, 3], "mean": [0.5] * 3, "std": [0.25] * 3}
TEXTS = {"kind": "texts", "max_length": 3, "encoding": "utf-8", "text_column": "review"}


def file(about, **more) -> ModelFile:
    return ModelFile(recipe="images", model={}, inputs=about, **more)


def pixels(about, item, **more) -> np.ndarray:
    _, dataset = inputs.images(file(about), [item], resize=more.get("resize", False))
    return dataset.fetch_micro_batch(np.array([0]))[0][0].numpy()


def test_images_become_what_the_model_knows():
    """Grey ones in colours and the other way round; resized on request, always where the training did."""
    grey = np.arange(20, dtype=np.uint8).reshape(4, 5)
    seen = pixels(GREY, grey)
    assert seen.shape == (1, 4, 5)
    assert np.array_equal(seen[0], ((grey.astype(np.float32) / np.float32(255)) - np.float32(0.5)) / np.float32(0.25))
    assert np.array_equal(pixels(COLOUR, grey), np.repeat(seen, 3, axis=0))
    assert np.array_equal(pixels(GREY, np.repeat(grey[..., None], 3, axis=2)), seen)
    large = Image.fromarray(np.full((40, 50), 7, dtype=np.uint8))
    for about, resize in ((GREY, True), (GREY | {"is_resized": True}, False)):
        assert np.unique(pixels(about, large, resize=resize)).size == 1
    with pytest.raises(DataError, match=r"image 1: expected 5 x 4 pixels .* found 50 x 40\. Hint: --resize"):
        pixels(GREY, large)


def test_what_is_no_image_is_named(tmp_path):
    """A missing file, a directory, a text, a file cut short, an array of other numbers; a link is followed."""
    (tmp_path / "text.png").write_text("no image")
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / "whole.png")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:60])
    (tmp_path / "link.png").symlink_to("whole.png")
    assert pixels(GREY, tmp_path / "link.png").shape == (1, 4, 5)
    for item, words in (
        (tmp_path / "none.png", "none.png: expected an image, found nothing"),
        (tmp_path, "found a directory"),
        (tmp_path / "text.png", "text.png: expected an image, found a file that is none: cannot"),
        (tmp_path / "cut.png", "cut.png: expected an image"),
        (np.zeros((4, 5)), "image 1: expected an image, found float64"),
        ("whole.png", "found nothing of that name"),
    ):
        with pytest.raises(DataError, match=words):
            pixels(GREY, item)


def test_texts_from_files_and_tables(tmp_path):
    """A text is a text; a file is one, a table's rows are several; names say where each came from."""
    (tmp_path / "one.txt").write_bytes(b"\xef\xbb\xbfa film")
    (tmp_path / "some.csv").write_text('mark,review\n1,"good, really"\n0,bad\n')
    (tmp_path / "some.jsonl.gz").write_bytes(gzip.compress(b'{"review": "fine"}\n'))
    found = inputs.texts(
        file(TEXTS), ["plain", *(tmp_path / name for name in ("one.txt", "some.csv", "some.jsonl.gz"))]
    )
    assert found[1] == ["plain", "a film", "good, really", "bad", "fine"]
    assert found[0][0] == "text 1"
    assert found[0][2] == f"{tmp_path / 'some.csv'}, line 2"
    assert inputs.texts(file(TEXTS), [tmp_path / "some.csv"], "mark")[1] == ["1", "0"]
    words = Vocabulary(words=("<pad>", "<unk>", "good", "bad")).to_json()
    packed = inputs.tokens_of(file(TEXTS, files={"vocabulary.json": words}), ["good or bad or not"])
    assert packed[0][0].tolist() == [2, 1, 3]  # cut as in training


def test_what_is_no_text_is_named(tmp_path):
    """Empty, of another encoding, without the column, a row with too many columns, a directory, nothing."""
    contents = {
        "empty.txt": b" \n",
        "other.txt": b"\xff\xfe",
        "other.csv": b"a,b\n1,2\n",
        "wide.csv": b"review\na\na,b\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for item, words in (
        ("", "text 1: expected a text, found an empty one"),
        (tmp_path / "empty.txt", "empty.txt: expected a text, found an empty one"),
        (tmp_path / "other.txt", "expected a text in utf-8 as in training"),
        (tmp_path / "other.csv", "expected a column 'review' once"),
        (tmp_path / "wide.csv", "wide.csv, line 3: expected 1 columns, found 2. Hint: correct the row"),
        (tmp_path, "found a directory"),
        (Path("nowhere.txt"), "found nothing"),
    ):
        with pytest.raises(DataError, match=words):
            inputs.texts(file(TEXTS), [item])
