"""An idx file is read whole and exactly, or refused with the byte where it goes wrong."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from unisono.data.files.idx import read_idx
from unisono.errors import DataError

CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}
KEEP = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_idx(array: np.ndarray) -> bytes:
    header = struct.pack(">HBB", 0, CODES[array.dtype.name], array.ndim)
    header += b"".join(struct.pack(">I", size) for size in array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


arrays = hnp.arrays(
    dtype=st.sampled_from([np.dtype(name) for name in CODES]),
    shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5),
)
SAMPLE = np.arange(12, dtype=np.int16).reshape(3, 4)


@KEEP
@given(array=arrays, packed=st.booleans())
def test_what_was_written_is_read(tmp_path, array, packed):
    """Every dtype and shape comes back bit for bit, gzipped or not, in native byte order."""
    content = write_idx(array)
    path = tmp_path / "any-name"
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    found = read_idx(path)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable


@KEEP
@given(data=st.data(), packed=st.booleans())
def test_every_cut_is_refused(tmp_path, data, packed):
    """No prefix of a file is accepted, whatever its length."""
    content = write_idx(SAMPLE)
    content = gzip.compress(content, mtime=0) if packed else content
    cut = data.draw(st.integers(0, len(content) - 1))
    path = tmp_path / "cut"
    path.write_bytes(content[:cut])
    with pytest.raises(DataError, match=str(path)):
        read_idx(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "byte 0, found an empty file"),
        (b"PK\3\4" + bytes(40), "byte 0, found 50 4b 03 04"),
        (b"\0\0\x07\1" + bytes(40), "byte 2, one of 0x08 .uint8.*found 0x07"),
        (b"\0\0\x08\0" + bytes(40), "1 to 8 dimensions at byte 3, found 0"),
        (b"\0\0\x08\xff" + bytes(40), "1 to 8 dimensions at byte 3, found 255"),
        (b"\0\0\x08\3" + bytes(11), "bytes 4 to 15, found the end of the file at byte 15"),
        (write_idx(SAMPLE)[:-1], r"expected 36 bytes.*found 35; cut short from byte 35"),
        (write_idx(SAMPLE) + b"x", r"expected 36 bytes.*found 37; too long from byte 36"),
        (b"\0\0\x0e\4" + b"\xff" * 16, "cut short"),
        (gzip.compress(write_idx(SAMPLE), mtime=0)[:-4], r"whole gzip file, found near byte \d+ of \d+"),
        (gzip.compress(write_idx(SAMPLE), mtime=0) + b"junk", "Not a gzipped file"),
        (gzip.compress(write_idx(SAMPLE), mtime=0)[:-8] + bytes(8), "CRC check failed"),
    ],
)
def test_malformed_files_are_refused_by_byte(tmp_path, content, message):
    """The message names the file, the byte, what was expected and what was found."""
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_missing_file_and_decompression_bomb(tmp_path):
    """A missing file and one that grows past the limit are DataErrors."""
    with pytest.raises(DataError, match="No such file"):
        read_idx(tmp_path / "gone")
    (tmp_path / "bomb").write_bytes(gzip.compress(bytes(10_000_000), mtime=0))
    with pytest.raises(DataError, match=r"at most 1,000,000 bytes"):
        read_idx(tmp_path / "bomb", max_bytes=1_000_000)
