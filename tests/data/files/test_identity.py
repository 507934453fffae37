"""A file is told apart by its size and blocks, wherever it lies."""

import functools

import pytest

from unisono.data.files.identity import sampled_identity
from unisono.errors import DataError

identity = functools.partial(sampled_identity, num_blocks=16)


def test_small_files_are_hashed_whole(tmp_path):
    """Every byte counts up to 256 KiB; a copy is the same file."""
    content = bytearray(range(256)) * 1000
    path = tmp_path / "a"
    path.write_bytes(content)
    first = identity(path)
    assert first.startswith("256000-")
    (tmp_path / "copy").write_bytes(content)
    assert identity(tmp_path / "copy") == first
    for place in (0, 77_777, 255_999):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        assert identity(path) != first


def test_large_files_by_blocks(tmp_path):
    """Size, beginning and end count, and so does what moves everything; a byte between the blocks is not seen."""
    content = bytearray(i * i % 251 for i in range(1 << 20))
    path = tmp_path / "a"

    def of(changed):
        path.write_bytes(changed)
        return identity(path)

    first = of(content)
    assert of(content + b"x") != first
    assert of(b"x" + content[1:]) != first
    assert of(content[:-1] + b"x") != first
    assert of(content[: 1 << 19] + content[(1 << 19) + 1 :] + b"x") != first
    unseen = [place for place in range(0, 1 << 20, 1 << 14) if of(flipped(content, place + 8000)) == first]
    assert len(unseen) > 40
    assert of(content) == first


def flipped(content, place):
    changed = bytearray(content)
    changed[place] ^= 1
    return changed


def test_what_cannot_be_read_is_named(tmp_path):
    """As everywhere."""
    with pytest.raises(DataError, match="expected a readable file, found: No such file"):
        identity(tmp_path / "none")
    with pytest.raises(DataError, match="expected a readable file, found: Is a directory"):
        identity(tmp_path)
