"""A shard is looked through once, unpacked once, and again when it changes."""

import gzip
import os
import sys

import pytest

from shard_files import lines_bytes, tar_bytes
from unisono.data.sources import shard_cache
from unisono.data.sources.shard_cache import indexed, shard_identity
from unisono.errors import ConfigError, DataError

ROWS = [{"n": number} for number in range(300)]


def read(path, cache, kind="lines"):
    found = indexed(path, kind, shard_identity(path), cache)
    content = found.path.read_bytes()
    return [content[begin : begin + length] for begin, length in found.records.tolist()]


def compressed(ending, content):
    if ending == ".gz":
        return gzip.compress(content)
    zstandard = pytest.importorskip("zstandard", reason="needs the extra shards")
    half = len(content) // 2  # two frames
    return zstandard.compress(content[:half]) + zstandard.compress(content[half:])


@pytest.fixture
def looks(monkeypatch):
    """Which files have been looked through."""
    seen = []
    scan = shard_cache.scan_lines
    monkeypatch.setattr(shard_cache, "scan_lines", lambda path: seen.append(path) or scan(path))
    return seen


def test_once_until_it_changes(tmp_path, looks):
    """An edit that keeps the size, blocks and all is seen by its time."""
    path, cache = tmp_path / "a.jsonl", tmp_path / "cache"
    path.write_bytes(lines_bytes(ROWS))
    expected = lines_bytes(ROWS).splitlines()
    assert read(path, cache) == read(path, cache) == expected
    assert looks == [path]
    path.write_bytes(lines_bytes(ROWS[:-1]))
    assert read(path, cache) == expected[:-1]
    os.utime(path, ns=(0, 0))
    assert read(path, cache) == expected[:-1]
    assert looks == [path] * 3


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_compressed_shard_is_unpacked_once(ending, tmp_path, looks):
    """Also one of several frames; what was unpacked is checked when it is opened, and made again."""
    path, cache = tmp_path / f"a.jsonl{ending}", tmp_path / "cache"
    path.write_bytes(compressed(ending, lines_bytes(ROWS)))
    expected = lines_bytes(ROWS).splitlines()
    assert read(path, cache) == read(path, cache) == expected
    (plain,) = cache.glob("*.plain")
    assert looks == [plain]
    plain.write_bytes(b"spoilt")
    assert read(path, cache) == expected
    plain.unlink()
    assert read(path, cache) == expected
    assert looks == [plain]
    (tmp_path / "cut").mkdir()
    for most in (-3, len(path.read_bytes()) // 2):
        cut = tmp_path / "cut" / path.name
        cut.write_bytes(path.read_bytes()[:most])
        with pytest.raises(DataError, match=rf"expected a whole {ending} file, found: "):
            read(cut, cache)
    assert len(list(cache.glob("*.plain"))) == 1


def test_a_full_disk_is_named(tmp_path):
    """No part of a file that did not fit stays in the cache."""
    path, cache = tmp_path / "a.jsonl.gz", tmp_path / "cache"
    path.write_bytes(gzip.compress(lines_bytes(ROWS)))
    expected = read(path, cache)
    (plain,) = cache.glob("*.plain")
    plain.unlink()
    plain.symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"room to unpack .*a\.jsonl\.gz, found: No space left on device\. Hint: free"):
        read(path, cache)
    assert not plain.is_symlink()
    assert read(path, cache) == expected


def test_compressed_tars(tmp_path):
    """Unpacked alike."""
    path = tmp_path / "a.tgz"
    path.write_bytes(gzip.compress(tar_bytes({"1": {"txt": b"a"}, "2": {"txt": b"b"}})))
    assert [len(sample) for sample in read(path, tmp_path / "cache", "tar")] == [1024, 1024]


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    """With the line that installs it."""
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError, match=r"a\.jsonl\.zst cannot be read: .*pip install .*'zstandard"):
        read(path, tmp_path / "cache")
