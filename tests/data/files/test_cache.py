"""A built directory is complete and unchanged, or it is built again, once."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from unisono.data.files.cache import MANIFEST, cache_key, cached_directory, check_manifest, find_damage
from unisono.errors import DataError


def build(directory: Path) -> None:
    (directory / "a.bin").write_bytes(b"aaaa")
    (directory / "b.bin").write_bytes(b"bbbb")


def fail(directory: Path) -> None:
    raise AssertionError("must not build")


def test_built_once_and_verified(tmp_path):
    """The second call verifies and does not build; nothing but the entry and its lock is left."""
    entry = tmp_path / "deep" / "entry"
    assert cached_directory(entry, build) == entry
    assert cached_directory(entry, fail) == entry
    assert sorted(path.name for path in entry.iterdir()) == ["a.bin", "b.bin", MANIFEST]
    assert sorted(path.name for path in entry.parent.iterdir()) == [".entry.lock", "entry"]


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.bin", b"aaa", "expected 4 bytes in a.bin, found 3"),
        ("b.bin", b"bbbc", "of b.bin, found"),
        ("b.bin", None, "No such file"),
        (MANIFEST, b"{", MANIFEST),
        (MANIFEST, b"[]", MANIFEST),
        (MANIFEST, b'{"files": {"a.bin": 1}}', MANIFEST),
        (MANIFEST, b'{"files": []}', MANIFEST),
        (MANIFEST, b"\xff\xff", MANIFEST),
    ],
)
def test_damage_is_named_and_built_again(tmp_path, caplog, name, content, found):
    """Any changed, missing or cut file is reported; the launcher builds again with a warning."""
    entry = cached_directory(tmp_path / "entry", build)
    (entry / name).unlink()
    if content is not None:
        (entry / name).write_bytes(content)
    with pytest.raises(DataError, match="it is built again") as caught:
        check_manifest(entry)
    assert found in str(caught.value)
    with caplog.at_level(logging.WARNING):
        cached_directory(entry, build)
    assert "building it again" in caplog.text
    assert find_damage(entry) is None


def test_prefix_limits_the_check(tmp_path):
    """Only the files with the prefix are read."""
    entry = cached_directory(tmp_path / "entry", build)
    (entry / "b.bin").write_bytes(b"no")
    check_manifest(entry, "a")
    with pytest.raises(DataError):
        check_manifest(entry, "b")


def test_failed_build_leaves_nothing(tmp_path):
    """An exception of the builder comes through and no directory appears."""
    with pytest.raises(AssertionError):
        cached_directory(tmp_path / "entry", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".entry.lock"]


def test_full_disk_is_explained(tmp_path):
    """A real 'no space left' becomes a DataError with a hint."""

    def fill(directory: Path) -> None:
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"x")

    with pytest.raises(DataError, match=r"No space left.*Hint: free some space"):
        cached_directory(tmp_path / "entry", fill)


def test_what_a_killed_builder_left_is_removed(tmp_path):
    """A builder killed half-way leaves no entry, and the next start cleans up and builds."""
    entry = tmp_path / "entry"
    code = (
        "import os; from pathlib import Path; from unisono.data.files.cache import cached_directory\n"
        "def build(directory):\n (directory / 'half').write_bytes(b'x'); os.kill(os.getpid(), 9)\n"
        f"cached_directory(Path({str(entry)!r}), build)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert not entry.exists()
    assert [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]
    cached_directory(entry, build)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".entry.lock", "entry"]


def test_concurrent_starters_build_once(tmp_path):
    """Of three processes that start together, one builds and all see the result."""
    entry, marks = tmp_path / "entry", tmp_path / "marks"
    marks.mkdir()
    code = (
        "import os, time; from pathlib import Path; from unisono.data.files.cache import cached_directory\n"
        f"def build(directory):\n (Path({str(marks)!r}) / str(os.getpid())).touch(); time.sleep(0.3);"
        " (directory / 'x').write_bytes(b'x')\n"
        f"assert (cached_directory(Path({str(entry)!r}), build) / 'x').read_bytes() == b'x'"
    )
    starters = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [starter.wait(60) for starter in starters] == [0, 0, 0]
    assert len(list(marks.iterdir())) == 1


def test_key_changes_with_source_setting_and_format():
    """Every part of the key counts; the order of the settings does not."""
    base = {"source_sha256": "0" * 64, "settings": {"a": 1, "b": None}, "format_version": 1}
    keys = {
        cache_key(**base),
        cache_key(**{**base, "source_sha256": "1" * 64}),
        cache_key(**{**base, "settings": {"a": 2, "b": None}}),
        cache_key(**{**base, "settings": {"a": "1", "b": None}}),
        cache_key(**{**base, "format_version": 2}),
    }
    assert len(keys) == 5
    assert cache_key(**{**base, "settings": {"b": None, "a": 1}}) == cache_key(**base)
