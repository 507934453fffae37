"""MNIST is the pinned one."""

import gzip
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from unisono.data.sets.mnist import MEAN, STD, load_mnist
from unisono.data.sets.mnist_files import MIRRORS, NAMES, PINS
from unisono.errors import DataError


def write_lookalike(folder: Path, *, packed: bool = True) -> None:
    """Write four small idx files under MNIST's names (as Fashion-MNIST does)."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        if "images" in name:
            content = struct.pack(">BBBBIII", 0, 0, 8, 3, 5, 28, 28) + bytes(range(196)) * 20
        else:
            content = struct.pack(">BBBBI", 0, 0, 8, 1, 5) + bytes(range(5))
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
def test_lookalike_is_refused(tmp_path, packed):
    """Other data under the same names."""
    write_lookalike(tmp_path, packed=packed)
    with pytest.raises(DataError, match=r"expected .* with sha256 .*, found .*Hint: "):
        load_mnist(tmp_path)


def test_missing_file_is_named(tmp_path):
    """The error says which file to put where."""
    write_lookalike(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"Hint: put t10k-labels-idx1-ubyte.gz into"):
        load_mnist(tmp_path)
    with pytest.raises(DataError, match="found nothing"):
        load_mnist(tmp_path / "nowhere")


def test_pins_cover_every_file_in_both_forms():
    """Each of the four files has a pin gzipped and raw; mirrors use TLS and end with a slash."""
    assert set(PINS) == {form for name in NAMES for form in (name, f"{name}.gz")}
    assert all(url.startswith("https://") and url.endswith("/") for url in MIRRORS)
