"""MNIST is the pinned one unless the user says otherwise, and is normalised in one place."""

import gzip
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from unisono.data.sets.mnist import MEAN, STD, load_mnist, normalise
from unisono.data.sets.mnist_files import MIRRORS, NAMES, PINS
from unisono.errors import ConfigError, DataError


def write_lookalike(folder: Path, *, num_labels: int = 5, packed: bool = True) -> None:
    """Write four small idx files under MNIST's names (as Fashion-MNIST does)."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        if "images" in name:
            content = struct.pack(">BBBBIII", 0, 0, 8, 3, 5, 28, 28) + bytes(range(196)) * 20
        else:
            content = struct.pack(">BBBBI", 0, 0, 8, 1, num_labels) + bytes(range(num_labels))
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)


@pytest.mark.mnist
def test_real_mnist_has_the_known_facts(real_mnist):
    """Shapes, label histograms, mean and deviation are those of the published set."""
    mnist = load_mnist(real_mnist)
    assert mnist.train_images.shape == (60_000, 28, 28)
    assert mnist.test_images.shape == (10_000, 28, 28)
    assert mnist.train_images.dtype == mnist.test_images.dtype == np.uint8
    assert mnist.train_labels.dtype == mnist.test_labels.dtype == np.int64
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(mnist.train_labels).tolist() == train
    assert np.bincount(mnist.test_labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert round(mnist.train_images.mean() / 255, 4) == MEAN
    assert round(mnist.train_images.std() / 255, 4) == STD
    normal = normalise(mnist.train_images)
    assert abs(normal.mean(dtype=np.float64)) < 1e-3
    assert abs(normal.std(dtype=np.float64) - 1) < 1e-3


@pytest.mark.mnist
@pytest.mark.parametrize("nested", ["", "MNIST/raw"])
def test_real_mnist_also_unpacked_and_in_torchvisions_layout(real_mnist, tmp_path, nested):
    """Raw idx files are checked by their own pins, in the directory or in MNIST/raw."""
    folder = tmp_path / nested
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        with gzip.open(real_mnist / f"{name}.gz") as packed, (folder / name).open("wb") as raw:
            shutil.copyfileobj(packed, raw)
    found, expected = load_mnist(tmp_path), load_mnist(real_mnist)
    assert np.array_equal(found.train_images, expected.train_images)
    assert np.array_equal(found.test_labels, expected.test_labels)
    (folder / NAMES[3]).write_bytes((folder / NAMES[3]).read_bytes()[:-1])
    with pytest.raises(DataError, match=r"10,008 bytes.*10,007 bytes.*cut short"):
        load_mnist(tmp_path)


@pytest.mark.parametrize("packed", [True, False])
def test_lookalike_needs_verify_off(tmp_path, packed):
    """Other data under the same names is refused, and accepted with verify=False."""
    write_lookalike(tmp_path, packed=packed)
    with pytest.raises(DataError, match=r"expected .* with sha256 .*, found .*Hint: "):
        load_mnist(tmp_path)
    found = load_mnist(tmp_path, verify=False)
    assert found.train_images.shape == found.test_images.shape == (5, 28, 28)
    assert found.train_labels.tolist() == [0, 1, 2, 3, 4]
    assert repr(found) == "ImageSplits(5 train, 5 test, uint8 images of shape (28, 28))"


def test_labels_that_do_not_fit_are_refused(tmp_path):
    """With verify=False the two files of a split must still belong together."""
    write_lookalike(tmp_path, num_labels=4)
    with pytest.raises(DataError, match="expected 5 whole-number labels"):
        load_mnist(tmp_path, verify=False)
    shutil.copy(tmp_path / f"{NAMES[1]}.gz", tmp_path / f"{NAMES[0]}.gz")
    with pytest.raises(DataError, match="expected uint8 images"):
        load_mnist(tmp_path, verify=False)


def test_missing_file_is_named(tmp_path):
    """The error says which file to put where."""
    write_lookalike(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"Hint: put t10k-labels-idx1-ubyte.gz into"):
        load_mnist(tmp_path)
    with pytest.raises(DataError, match="found nothing"):
        load_mnist(tmp_path / "nowhere")


def test_normalise_spells_the_formula_in_float32():
    """(x / 255 - mean) / std, each operation in float32, in this order, for all 256 values."""
    images = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    found = normalise(images)
    assert found.shape == (1, 1, 16, 16)
    assert found.dtype == np.float32
    f = np.float32
    expected = [(f(value) / f(255) - f(0.1307)) / f(0.3081) for value in range(256)]
    assert found.ravel().tobytes() == np.array(expected, dtype=np.float32).tobytes()
    assert images[0, 0, 1] == 1
    with pytest.raises(ConfigError, match="expected uint8 images"):
        normalise(images.astype(np.float32))
    with pytest.raises(ConfigError, match="expected uint8 images"):
        normalise(images[0])


def test_pins_cover_every_file_in_both_forms():
    """Each of the four files has a pin gzipped and raw; mirrors use TLS and end with a slash."""
    assert set(PINS) == {form for name in NAMES for form in (name, f"{name}.gz")}
    assert all(url.startswith("https://") and url.endswith("/") for url in MIRRORS)
