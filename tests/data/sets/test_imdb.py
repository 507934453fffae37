"""The reviews come whole, in canonical order, from archive and directory alike; strange data is refused."""

import hashlib
import io
import shutil
import tarfile
from collections import Counter

import numpy as np
import pytest

from unisono.data.files.archive import ArchiveLimits
from unisono.data.sets.imdb import PINS, find_source, load_imdb, read_reviews
from unisono.data.sets.text import tokenise
from unisono.errors import ConfigError, DataError

FILES = {
    "train/pos/10_9.txt": "A good film, good.",
    "train/pos/9_10.txt": "Good!<br />Really.",
    "train/neg/0_2.txt": "bad",
    "train/unsup/0_0.txt": "never read",
    "train/labeledBow.feat": "9 0:1",
    "test/neg/1_1.txt": "bad, bad and rare",
    "test/pos/2_7.txt": "good caf\u00e9",
    "README": "cite Maas 2011",
}
NUMBERS = [("test", 0, 1), ("test", 1, 2), ("train", 0, 0), ("train", 1, 9), ("train", 1, 10)]


def write_archive(path, files=FILES, *, reverse=False):
    with tarfile.open(path, "w:gz") as tar:
        for name, text in sorted(files.items(), reverse=reverse):
            content = text if isinstance(text, bytes) else text.encode()
            info = tarfile.TarInfo(f"aclImdb/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def write_directory(root, files=FILES):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def test_order_is_canonical_whatever_the_source(tmp_path):
    """Archive order, reversed order and directory give the same list: by split, label, number."""
    found = read_reviews(write_archive(tmp_path / "a.tar.gz"))
    assert [review[:3] for review in found] == NUMBERS
    assert [review.rating for review in found] == [1, 7, 2, 10, 9]
    assert found[4].text == "A good film, good."
    assert read_reviews(write_archive(tmp_path / "b.tar.gz", reverse=True)) == found
    assert read_reviews(write_directory(tmp_path / "aclImdb")) == found


def test_loading_tokenises_once_and_agrees_for_every_source(tmp_path):
    """Stores and vocabulary are equal from archive, directory and cache; a second load builds nothing."""
    archive = write_archive(tmp_path / "a.tar.gz")
    write_directory(tmp_path / "data" / "aclImdb")
    cache = tmp_path / "cache"
    told = []
    first = load_imdb(archive, cache=cache, min_freq=1, tell=lambda *what: told.append(what))
    assert told[0] == ("reading reviews", 0, 0)
    assert told[-1] == ("cutting texts into tokens", 2, 2)
    made = {path: path.stat().st_mtime_ns for path in (cache / "imdb").iterdir()}
    second = load_imdb(archive, cache=cache, min_freq=1)
    assert {path: path.stat().st_mtime_ns for path in (cache / "imdb").iterdir()} == made
    assert first.vocabulary.words[:4] == ("<pad>", "<unk>", "good", ".")
    assert first.train.labels.tolist() == [0, 1, 1]
    assert first.test.labels.tolist() == [0, 1]
    words = ["bad", ",", "bad", "and", "rare", "good", "café"]
    assert first.test.tokens.tolist() == first.vocabulary.encode(words).tolist()
    directory = load_imdb(tmp_path / "data", cache=cache, min_freq=1)
    for other in (second, directory, load_imdb(tmp_path / "data" / "aclImdb", cache=cache, min_freq=1)):
        assert other.vocabulary == first.vocabulary
        assert np.array_equal(other.train.tokens, first.train.tokens)
        assert np.array_equal(other.test.offsets, first.test.offsets)


def test_settings_and_content_have_their_own_stores(tmp_path):
    """Another min_freq or text never meets the stores of the first."""
    cache = tmp_path / "cache"
    archive = write_archive(tmp_path / "a.tar.gz")
    assert len(load_imdb(archive, cache=cache, min_freq=2).vocabulary) == 4
    root = write_directory(tmp_path / "aclImdb")
    before = load_imdb(root, cache=cache, min_freq=1)
    (root / "test/neg/1_1.txt").write_text("good")
    assert len(load_imdb(root, cache=cache, min_freq=1).test.tokens) == len(before.test.tokens) - 4
    with pytest.raises(ConfigError, match="at least 99 occurrences"):
        load_imdb(archive, cache=cache, min_freq=99)


def test_damaged_store_is_built_again(tmp_path, caplog):
    """A changed byte in the cache is found when the data is loaded, and repaired with a warning."""
    archive = write_archive(tmp_path / "a.tar.gz")
    first = load_imdb(archive, cache=tmp_path, min_freq=1)
    assert first.train.origin is not None
    path = first.train.origin[0] / "train_labels.npy"
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    again = load_imdb(archive, cache=tmp_path, min_freq=1)
    assert again.train.labels.tolist() == [0, 1, 1]
    assert "building it again" in caplog.text


@pytest.mark.parametrize("kind", ["archive", "directory"])
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train/pos/3_9.txt": b"ab\xe9"}, r"train/pos/3_9.txt: expected UTF-8, found byte 0xe9 at byte 2"),
        ({"train/pos/010_1.txt": "x"}, r"expected each review once, found \('train', 1, 10\)"),
        ({"train/pos/3_9.txt": "x" * 101}, "at most 100 bytes"),
    ],
)
def test_strange_reviews_are_refused(tmp_path, kind, files, message):
    """Other encodings, a number twice and oversized reviews are DataErrors that name the review."""
    write = {"archive": write_archive, "directory": write_directory}[kind]
    with pytest.raises(DataError, match=message):
        read_reviews(write(tmp_path / "source", FILES | files), limits=ArchiveLimits(member_bytes=100))


@pytest.mark.parametrize("kind", ["archive", "directory"])
def test_too_many_reviews_and_missing_split_are_refused(tmp_path, kind):
    """Counts are capped; a source without test reviews is not a data set."""
    write = {"archive": write_archive, "directory": write_directory}[kind]
    with pytest.raises(DataError, match="expected at most 4"):
        read_reviews(write(tmp_path / "a", FILES), limits=ArchiveLimits(num_members=4))
    files = {name: text for name, text in FILES.items() if not name.startswith("test")}
    with pytest.raises(DataError, match=r"expected (reviews named|a directory of reviews)"):
        read_reviews(write(tmp_path / "b", files))


def test_links_in_a_directory_are_not_followed(tmp_path):
    """A link in place of a review is refused: it could bring any file of the machine into the data."""
    root = write_directory(tmp_path / "aclImdb")
    (root / "train/pos/3_9.txt").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match="found a link"):
        read_reviews(root)


@pytest.mark.parametrize("name", list(PINS))
def test_known_names_must_have_the_known_bytes(tmp_path, name):
    """An archive under a known name is checked before it is opened; any other name may hold any reviews."""
    archive = write_archive(tmp_path / name)
    for data in (archive, tmp_path):
        with pytest.raises(DataError, match=f"expected {PINS[name].size_bytes:,} bytes with sha256"):
            load_imdb(data, cache=tmp_path)
    other = archive.rename(tmp_path / "mine.tar.gz")
    assert find_source(other, tmp_path) == other


def test_nothing_usable_is_explained(tmp_path):
    """The error names the archives that would do."""
    for data in (tmp_path, tmp_path / "gone"):
        with pytest.raises(DataError, match=r"expected one of aclImdb_v1.tar.gz, .*Hint: put aclImdb_v1.tar.gz"):
            load_imdb(data, cache=tmp_path)


@pytest.mark.imdb
@pytest.mark.slow
def test_real_imdb_has_the_known_facts(real_imdb, tmp_path):
    """Counts, bytes, tokens and vocabulary are those measured on the published set."""
    reviews = read_reviews(real_imdb)
    kinds = [("train", 1), ("train", 0), ("test", 1), ("test", 0)]
    assert Counter(review[:2] for review in reviews) == dict.fromkeys(kinds, 12_500)
    num_bytes: Counter[tuple[str, int]] = Counter()
    for review in reviews:
        num_bytes[review[:2]] += len(review.text.encode())
    assert [num_bytes[kind] for kind in kinds] == [16_842_831, 16_289_992, 16_283_357, 16_067_328]
    assert all((review.rating >= 7) == (review.label == 1) for review in reviews)
    train = tokenise(review.text for review in reviews if review.split == "train")
    assert len(train.words) == 100_682
    assert len(train.ids) == 6_767_187

    shutil.copy(real_imdb, tmp_path)
    data = load_imdb(tmp_path, cache=tmp_path / "cache")
    assert len(data.vocabulary) == 13_352
    assert data.vocabulary.words[:6] == ("<pad>", "<unk>", "the", ".", ",", "and")
    assert len(data.train) == len(data.test) == 25_000
    assert len(data.train.tokens) == 6_767_187
    lengths = data.train.lengths()
    assert (round(lengths.mean()), int(np.median(lengths)), int(lengths.max())) == (271, 202, 2752)
    assert ((data.train.lengths() < 113).sum(), (data.test.lengths() < 113).sum()) == (2_773, 2_947)
    assert np.array_equal(data.train.tokens, train.encode(data.vocabulary))
    covered = (np.asarray(data.train.tokens) > 1).mean()
    assert round(100 * covered, 1) == 96.1
    golden = hashlib.sha256(data.train.tokens.tobytes() + data.test.tokens.tobytes()).hexdigest()
    assert golden == "f4d14f2ae71626c9e4399fdb4ba8625f884e2d4c27a2498b35e81dcb232c14b8"
