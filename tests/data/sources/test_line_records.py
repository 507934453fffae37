"""Every line of a file is found where it lies."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.data.sources import line_records
from unisono.data.sources.line_records import scan_lines
from unisono.errors import DataError

LINES = st.lists(st.sampled_from([b"", b"\r", b"1", b'"ab"', b'{"a": [1, 2]}', b'"a"\r']), max_size=12)


@settings(max_examples=40)
@given(LINES, st.booleans(), st.integers(1, 9))
def test_lines_are_found(lines, is_ended, piece):
    """As splitting finds them, in pieces of any size; empty ones are none, a last one needs no end."""
    content = b"\n".join(lines) + (b"\n" if is_ended else b"")
    with TemporaryDirectory() as folder, mock.patch.object(line_records, "_PIECE_BYTES", piece):
        path = Path(folder, "a.jsonl")
        path.write_bytes(content)
        found = [content[begin : begin + length] for begin, length in scan_lines(path).tolist()]
    assert found == [line for line in content.split(b"\n") if line not in (b"", b"\r")]
    assert all(json.loads(line) is not None for line in found)


def test_a_file_that_is_cut_short_is_refused(tmp_path):
    """The last line tells; the byte is named."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2')
    with pytest.raises(DataError, match=r"a\.jsonl: expected JSON in the last line, at byte 9.*cut short"):
        scan_lines(path)
