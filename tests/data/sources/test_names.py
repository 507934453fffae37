"""Which files are meant, and in which order."""

from pathlib import Path

import pytest

from unisono.data.sources.names import find_shards, kind_of, packing_of, short_names
from unisono.errors import ConfigError, DataError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b-1.tar", "b-0.tar", "b-10.tar", "c.jsonl", "deep/d-2.tar", "note.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return tmp_path


def test_patterns_folders_numbers_and_lists(folder):
    """Sorted where the file system would decide, and as given where somebody has."""
    assert find_shards("b-*.tar") == [Path("b-0.tar"), Path("b-1.tar"), Path("b-10.tar")]
    assert find_shards(folder / "b-*.tar") == [folder / "b-0.tar", folder / "b-1.tar", folder / "b-10.tar"]
    assert find_shards("b-{0..1}.tar") == [Path("b-0.tar"), Path("b-1.tar")]
    assert find_shards(["b-10.tar", Path("b-0.tar")]) == [Path("b-10.tar"), Path("b-0.tar")]
    assert find_shards(folder / "deep") == [folder / "deep" / "d-2.tar"]
    assert find_shards("**/*-2.tar") == [Path("deep/d-2.tar")]


def test_numbers_are_padded_as_the_first():
    """As webdataset writes them; what is missing is named."""
    with pytest.raises(DataError, match=r"^x-003-1\.tar: expected a shard, found nothing\. Hint"):
        find_shards("x-{003..127}-{1..2}.tar")
    with pytest.raises(ConfigError, match=r"expected rising numbers in braces.*\{5\.\.2\}"):
        find_shards("x-{5..2}.tar")


def test_kinds():
    """By the name's end, of a compressed file without it."""
    names = ("a.tar", "a.TGZ", "a.tar.gz", "a.tar.zst", "a.jsonl", "a.ndjson.gz", "a.jsonl.zst", "a.parquet")
    assert [(kind_of(Path(name)), packing_of(Path(name))) for name in names] == [
        ("tar", None), ("tar", ".gz"), ("tar", ".gz"), ("tar", ".zst"),
        ("lines", None), ("lines", ".gz"), ("lines", ".zst"), ("parquet", None),
    ]  # fmt: skip
    for name in ("a.zip", "a.gz", "a.parquet.gz", "tar"):
        with pytest.raises(DataError, match="expected a shard whose name ends in"):
            kind_of(Path(name))


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ("s3://bucket/a.tar", ConfigError, "expected shards on a file system, got 's3://bucket/a.tar'"),
        ("pipe:cat a.tar", ConfigError, "fetch or mount them"),
        (5, ConfigError, "expected shards as a path, a pattern or a list of them, got int"),
        ([], DataError, "got an empty list"),
        ("z-*.tar", DataError, "expected a pattern that fits some file, got 'z-\\*.tar'"),
        ("nothing", DataError, "expected a folder with shards"),
        (["b-0.tar", "b-*.tar"], DataError, "got b-0.tar twice"),
        (["b-0.tar", "c.jsonl"], DataError, r"expected shards of one kind, got c\.jsonl and b-0\.tar"),
        ("note.md", DataError, "whose name ends in"),
    ],
)
def test_what_is_refused(folder, given, error, match):
    """With what to do instead."""
    (folder / "nothing").mkdir()
    with pytest.raises(error, match=match):
        find_shards(given)


def test_names_do_not_tell_where_the_data_lies(tmp_path):
    """Below the folder that all share."""
    assert short_names([tmp_path / "a" / "1.tar", tmp_path / "b" / "1.tar"]) == ["a/1.tar", "b/1.tar"]
    assert short_names([Path("1.tar")]) == short_names([tmp_path / "1.tar"]) == ["1.tar"]
