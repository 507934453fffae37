"""Own images: decoded once, all of one size, every broken file named or counted."""

import os

import numpy as np
import pytest
from PIL import Image

from unisono.data.sets import images as module
from unisono.data.sets.images import load_images, parse_size
from unisono.errors import ConfigError, DataError

CHANCE = np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path):
    """Two classes of 20 grey images of 9 x 7 pixels (width x height)."""
    for label in ("cat", "dog"):
        (tmp_path / "own" / label).mkdir(parents=True)
        for number in range(20):
            pixels = CHANCE.integers(0, 256, (7, 9), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "own" / label / f"{number:02}.png")
    return tmp_path / "own"


def test_a_folder_per_class(folder, tmp_path):
    """Pixels as they are in the files, labels by folder, every tenth of a class held out, mean and spread."""
    data = load_images(folder, cache=tmp_path / "cache")
    assert data.train_images.shape == (36, 7, 9, 1)
    assert data.test_images.shape == (4, 7, 9, 1)
    assert data.classes == ("cat", "dog")
    assert np.bincount(data.test_labels).tolist() == [2, 2]
    assert np.array_equal(data.train_images[0, :, :, 0], np.asarray(Image.open(folder / "cat" / "00.png")))
    assert np.allclose(data.mean, data.train_images.mean() / 255, atol=1e-6)
    assert np.allclose(data.std, data.train_images.std() / 255, atol=1e-6)


def test_told_how_far(folder, tmp_path):
    """Every image that is decoded is told of, and a second start has nothing to tell."""
    told = []
    load_images(folder, cache=tmp_path / "cache", tell=lambda *what: told.append(what))
    assert told == [("decoding own", done, 40) for done in range(41)]
    load_images(folder, cache=tmp_path / "cache", tell=lambda *what: told.append(what))
    assert len(told) == 41


def test_a_second_start_decodes_nothing(folder, tmp_path, monkeypatch):
    """Same files, same cache; one changed file, another."""
    key = load_images(folder, cache=tmp_path / "cache").key
    monkeypatch.setattr(module, "decode", None)
    assert load_images(folder, cache=tmp_path / "cache").key == key
    monkeypatch.undo()
    Image.fromarray(np.zeros((7, 9), np.uint8)).save(folder / "cat" / "00.png")
    assert load_images(folder, cache=tmp_path / "cache").key != key


def test_colour_wins_and_sizes_can_be_made_equal(folder, tmp_path):
    """One colour image makes all of them three channels; --image-size resizes."""
    Image.fromarray(CHANCE.integers(0, 256, (30, 30, 3), dtype=np.uint8)).save(folder / "dog" / "big.jpg")
    assert load_images(folder, size=(8, 10), cache=tmp_path / "cache").train_images.shape[1:] == (8, 10, 3)
    assert parse_size("8x10") == (8, 10)
    assert parse_size("64") == (64, 64)
    for wrong in ("0", "8x", "axb", "1x2x3", "99999"):
        with pytest.raises(ConfigError, match="image size"):
            parse_size(wrong)


def cut_short(path):
    path.write_bytes((path.parent / "01.png").read_bytes()[:60])


def of_another_size(path):
    Image.fromarray(np.zeros((7, 12), np.uint8)).save(path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(b""), "expected a whole image, found"),
        (lambda path: path.write_text("no image"), "expected a whole image, found"),
        (cut_short, "expected a whole image, found"),
        (of_another_size, "expected 9 x 7 pixels .* found 12 x 7 pixels.*--image-size"),
        (lambda path: path.symlink_to("01.png"), "expected a whole image, found a link"),
    ],
    ids=["empty", "text", "cut short", "another size", "link"],
)
def test_a_broken_image_is_named_or_counted(folder, tmp_path, spoil, message):
    """The file, what is wrong and what to do; nothing is left half-cached; a counted skip when asked for."""
    spoil(folder / "dog" / "x.png")
    with pytest.raises(DataError, match=rf"(?s)dog/x\.png: {message}.*--skip-broken"):
        load_images(folder, cache=tmp_path / "cache")
    left = [name for _, folders, files in os.walk(tmp_path / "cache") for name in (*folders, *files)]
    assert [name for name in left if not name.endswith(".lock")] == ["images"]
    data = load_images(folder, cache=tmp_path / "cache", skip_broken=True)
    assert (len(data.train_images) + len(data.test_images), data.skipped) == (40, 1)
    assert "x.png" in data.first_skipped[0]


def test_arrays_from_a_file(tmp_path):
    """An .npz file with images and labels, whole or already split."""
    images, labels = CHANCE.integers(0, 256, (40, 5, 6), dtype=np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "one.npz", images=images, labels=labels)
    data = load_images(tmp_path / "one.npz", cache=tmp_path / "cache")
    assert data.train_images.shape == (36, 5, 6, 1)
    np.savez(
        tmp_path / "two.npz", train_images=images, train_labels=labels, test_images=images[:8], test_labels=labels[:8]
    )
    data = load_images(tmp_path / "two.npz", cache=tmp_path / "cache")
    assert (len(data.train_images), len(data.test_images)) == (40, 8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": np.zeros((4, 5, 5), np.uint8)}, "expected arrays 'images' and 'labels'"),
        ({"images": np.zeros((4, 5, 5)), "labels": np.arange(4)}, "expected images as uint8"),
        ({"images": np.zeros((4, 5, 5), np.uint8), "labels": np.arange(3)}, "expected 4 labels"),
        (
            {"images": np.zeros((4, 5, 5), np.uint8), "labels": np.array([0, 1, -1, 0])},
            r"labels\[2\]: expected a label >= 0",
        ),
        ({"images": np.zeros((4, 5, 5), np.uint8), "labels": np.zeros(4, int)}, "at least two classes"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path, arrays, message):
    """Names, types, lengths and labels out of range, with the file and the row."""
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(DataError, match=rf"wrong\.npz.*{message}"):
        load_images(tmp_path / "wrong.npz", cache=tmp_path / "cache")


def test_a_test_label_out_of_range_is_named(tmp_path):
    """A label that training does not have, with its row."""
    images, labels = np.zeros((4, 5, 5), np.uint8), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "x.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels + 1)
    with pytest.raises(DataError, match=r"test_labels\[1\]: expected one of the training classes '0', '1', found '2'"):
        load_images(tmp_path / "x.npz", cache=tmp_path / "cache")


def test_other_sources_are_refused(tmp_path):
    """Nothing, an empty folder, a file cut short, another file."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "x.txt").write_text("x")
    for name, message in (
        ("none", "found nothing"),
        ("empty", "found none"),
        ("cut.npz", "expected an .npz file"),
        ("x.txt", "another file"),
    ):
        with pytest.raises(DataError, match=message):
            load_images(tmp_path / name, cache=tmp_path / "cache")


@pytest.mark.parametrize("text", ["", "x", "28x", "0x28", "4097", "28x28x28", "-1", "2.5", "٣", "9" * 5000, "nan"])
def test_what_is_no_size_is_refused(text):
    """One or two sides of 1 to 4,096 pixels."""
    with pytest.raises(
        ConfigError, match="expected an image size like 28x28 or 64, sides from 1 to 4,096, got"
    ) as caught:
        parse_size(text)
    assert len(str(caught.value)) < 200
    assert (parse_size("28x32"), parse_size("64")) == ((28, 32), (64, 64))
