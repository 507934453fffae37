"""Files by their paths."""

import json
import os
import stat

import numpy as np
import pytest

from unisono.errors import ConfigError
from unisono.system.files import read_file, replace_file, to_json, write_whole


def test_replacing_keeps_the_old_content_on_failure(tmp_path):
    """A writer that fails half-way changes nothing and leaves no temporary file."""
    path = tmp_path / "file"
    replace_file(path, lambda file: file.write(b"old"))

    def fail(file):
        file.write(b"half")
        raise RuntimeError("full")

    with pytest.raises(RuntimeError):
        replace_file(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_array_is_written_whole(tmp_path):
    """What NumPy writes into the open file is read back, and only its owner may read it."""
    values = np.arange(1 << 20)
    replace_file(tmp_path / "a.npy", lambda file: np.save(file, values), is_lasting=False)
    assert np.array_equal(np.load(tmp_path / "a.npy"), values)
    assert stat.S_IMODE((tmp_path / "a.npy").stat().st_mode) == 0o600


def test_a_result_is_for_everybody_that_the_mask_lets(tmp_path):
    """A result file has the mode of any new file, and a missing directory is a ConfigError."""
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "page.html", b"<p>")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o640
    assert read_file(tmp_path / "page.html") == b"<p>"
    assert read_file(tmp_path / "none" / "page.html") is None
    with pytest.raises(ConfigError, match="its directory must exist"):
        write_whole(tmp_path / "none" / "page.html", b"<p>")


def test_json_has_neither_nan_nor_infinity():
    """They become null, wherever they stand; everything else stays."""
    told = {"a": [1.5, float("nan"), (float("inf"), {"b": -float("inf")})], "c": None, "d": "NaN", "e": True}
    assert json.loads(to_json(told), parse_constant=pytest.fail) == {
        "a": [1.5, None, [None, {"b": None}]], "c": None, "d": "NaN", "e": True,
    }  # fmt: skip
