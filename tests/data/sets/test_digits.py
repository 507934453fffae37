"""The bundled digits are the same 1,437 + 360 samples everywhere."""

import hashlib

import numpy as np
import pytest

from unisono.data.sets.digits import choose_test, load_digits
from unisono.errors import DataError


def test_digits_are_scaled_split_and_stratified():
    """Sizes, range and class shares of the split are fixed; no sample is in both parts or in none."""
    pytest.importorskip("sklearn")
    digits = load_digits()
    assert digits.train_images.shape == (1437, 1, 8, 8)
    assert digits.test_images.shape == (360, 1, 8, 8)
    assert digits.train_images.dtype == np.float32
    assert digits.test_labels.dtype == np.int64
    assert (digits.train_images.min(), digits.train_images.max()) == (0.0, 1.0)
    train, test = np.bincount(digits.train_labels), np.bincount(digits.test_labels)
    assert (train + test).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.all(np.abs(test - (train + test) / 5) < 1)


def test_digits_have_golden_bytes():
    """The exact bytes of images and labels are pinned: the split never moves silently."""
    pytest.importorskip("sklearn")
    digits = load_digits()
    digest = hashlib.sha256()
    for part in (digits.train_images, digits.train_labels, digits.test_images, digits.test_labels):
        digest.update(part.tobytes())
    assert digest.hexdigest() == "e732b0a3d3480252865f800954ac2b73f390a35e3f374a6736e0c0fbbefa3f07"


def test_choose_test_takes_every_fifth_inside_the_classes():
    """Sorted by label, ties by position, every fifth sample is test."""
    labels = np.array([1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    assert np.flatnonzero(choose_test(labels)).tolist() == [0, 1, 10]


def test_missing_scikit_learn_names_the_extra(monkeypatch):
    """Without scikit-learn the error gives the command that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"Hint: pip install scikit-learn"):
        load_digits()
