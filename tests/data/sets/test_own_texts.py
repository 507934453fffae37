"""Own texts become token stores: split, cached by content, nothing half-cached."""

import os
from pathlib import Path

import numpy as np
import pytest

from unisono.data.files.tables import Columns
from unisono.data.sets import own_texts
from unisono.data.sets.own_texts import hold_out, load_texts, number_labels
from unisono.errors import DataError


def csv_file(tmp_path, rows, name="my.csv"):
    path = tmp_path / name
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return path


ROWS = [(f"word{number % 7} common {'good' if number % 2 else 'bad'}", number % 2) for number in range(40)]


def test_every_tenth_of_each_class_is_held_out(tmp_path):
    """Both parts keep the classes' shares; labels are numbers in the order of the classes."""
    data = load_texts(csv_file(tmp_path, ROWS), cache=tmp_path / "cache")
    assert (len(data.train), len(data.test), data.classes, data.skipped) == (36, 4, ("0", "1"), 0)
    assert np.bincount(data.test.labels).tolist() == [2, 2]
    good = data.vocabulary.words.index("good")
    assert all((good in data.train[index][0]) == bool(data.train[index][1]) for index in range(36))


def test_a_second_start_reads_nothing(tmp_path, monkeypatch):
    """The cache is used as long as content and settings are the same, and not one edit longer."""
    path = csv_file(tmp_path, ROWS)
    first = load_texts(path, cache=tmp_path / "cache")
    monkeypatch.setattr(own_texts, "read_rows", None)
    assert load_texts(path, cache=tmp_path / "cache").key == first.key
    monkeypatch.undo()
    again = load_texts(csv_file(tmp_path, [*ROWS, ("new", 1)]), cache=tmp_path / "cache")
    assert again.key != first.key
    assert len(again.train) + len(again.test) == 41
    assert load_texts(path, cache=tmp_path / "cache", min_freq=1).key != again.key


def test_a_failed_start_leaves_nothing(tmp_path):
    """A broken row in the middle: an error, and no cache that the next start could take for whole."""
    path = csv_file(tmp_path, [*ROWS[:20], ("a,b", 1), *ROWS[20:]])
    with pytest.raises(DataError, match=r"line 22: expected 2 columns, found 3"):
        load_texts(path, cache=tmp_path / "cache")
    left = [name for _, folders, files in os.walk(tmp_path / "cache") for name in (*folders, *files)]
    assert [name for name in left if not name.endswith(".lock")] == ["text"]
    data = load_texts(path, cache=tmp_path / "cache", skip_broken=True)
    assert (data.skipped, len(data.train) + len(data.test)) == (1, 40)
    assert "line 22" in data.first_skipped[0]


def test_a_folder_with_train_and_test_is_both(tmp_path):
    """The layout of many sets; labels of the test part must be known."""
    for split in ("train", "test"):
        for label in ("neg", "pos"):
            (tmp_path / split / label).mkdir(parents=True)
            (tmp_path / split / label / "1.txt").write_text(f"{label} word word")
    data = load_texts(tmp_path, cache=tmp_path / "cache", min_freq=1)
    assert (len(data.train), len(data.test), data.classes) == (2, 2, ("neg", "pos"))
    (tmp_path / "test" / "other").mkdir()
    (tmp_path / "test" / "other" / "1.txt").write_text("x")
    with pytest.raises(DataError, match=r"1\.txt: expected one of the training classes 'neg', 'pos', found 'other'"):
        load_texts(tmp_path, cache=tmp_path / "cache", min_freq=1)


def test_one_class_is_no_task(tmp_path):
    """Said with the class and how often it came."""
    with pytest.raises(DataError, match="at least two classes, found only '1', 3 times"):
        load_texts(csv_file(tmp_path, [("a", 1)] * 3), cache=tmp_path / "cache")


def test_a_label_out_of_range_names_its_row(tmp_path):
    """A test label that training does not have."""
    train, test = csv_file(tmp_path, ROWS), csv_file(tmp_path, [("a", 0), ("b", 7)], "test.csv")
    with pytest.raises(DataError, match=r"test\.csv, line 3: expected one of the training classes '0', '1', found '7'"):
        load_texts(train, test_data=test, cache=tmp_path / "cache")


def test_too_little_to_hold_out(tmp_path):
    """Fewer texts than one in ten needs: said, with the way out."""
    with pytest.raises(DataError, match="Hint: pass --test-data"):
        load_texts(csv_file(tmp_path, ROWS[:6]), cache=tmp_path / "cache", min_freq=1)


def test_columns_are_part_of_the_key(tmp_path):
    """The same file read through other columns is other data."""
    path = tmp_path / "my.csv"
    path.write_text("text,label,other\n" + "".join(f"a{n} b,{n % 2},{n % 3}\n" for n in range(40)))
    one = load_texts(path, cache=tmp_path / "cache", min_freq=1)
    two = load_texts(path, columns=Columns(label="other"), cache=tmp_path / "cache", min_freq=1)
    assert (len(one.classes), len(two.classes)) == (2, 3)


def test_numbers_are_ordered_by_value():
    """Class 10 comes after class 9, and words after numbers."""
    labels = ["10", "9", "b", "a"]
    assert number_labels([labels], [labels], None) == ["9", "10", "a", "b"]


def test_holding_out_counts_within_classes():
    """Sorted or mixed labels give the same shares."""
    mixed = hold_out(np.tile(np.arange(3), 20), 5, "texts", Path("own.csv"))
    assert mixed.sum() == 12
    assert hold_out(np.repeat(np.arange(3), 20), 5, "texts", Path("own.csv")).sum() == 12


def test_labels_of_many_digits_are_names():
    """Python reads no number of more than 4,300 digits; shorter ones are sorted by value, long ones by their digits."""
    long = "9" * 5000
    assert number_labels([["10", "9", long]], [["", "", ""]], Path("x")) == ["9", "10", long]
