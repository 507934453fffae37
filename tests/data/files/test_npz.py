"""A hostile or damaged .npz is refused before it can cost memory, and without running what it holds."""

import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unisono.data.files.npz import read_npz
from unisono.errors import DataError

ARRAYS = {"images": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "labels": np.array(["a", "b"])}
KEEP = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def header(text):
    """Return the beginning of a .npy file."""
    encoded = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(encoded)) + encoded


def described(shape, descr="|u1"):
    return header(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}")


def packed(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_numpy_reads_them(tmp_path, save):
    """Values, shapes and types; other files beside them are of no interest."""
    arrays = {**ARRAYS, "fortran": np.asfortranarray(np.eye(3)), "none": np.zeros((0, 2)), "one": np.float32(2)}
    save(tmp_path / "x.npz", **arrays)
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        archive.writestr("README", "not an array")
    found = read_npz(tmp_path / "x.npz")
    assert found.keys() == arrays.keys()
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name], values, strict=True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (described((4503599627370496, 28, 28)), r"'x': expected 3,530,822,107,858,468,864 bytes .*, found 0 in a file"),
        (described((1 << 70,)), "found 0 in a file"),
        (described((-1,)) + bytes(8), "expected -1 bytes"),
        (described((9,)) + bytes(8), "expected 9 bytes .*, found 8"),
        (described((7,)) + bytes(8), "expected 7 bytes .*, found 8"),
        (described((1,), "|O") + bytes(8), "Python objects, which are not loaded: they could run any code. Hint: "),
        (header("-" * 9000 + "1"), "expected the header of an array, found"),
        (header("{'descr': " + "(" * 9000), "expected the header of an array, found"),
        (header("{1: 2, 'a': 3}"), "expected the header of an array, found"),
        (header("x" * 20_000), r"found: Header info length \(20001\) is large[^\n]*Hint"),
        (b"\x93NUMPY\x03\x00" + bytes(64), "format 1.0 or 2.0"),
        (b"no array", "expected an .npz file of arrays"),
    ],
    ids=[f"case{number}" for number in range(12)],
)
def test_what_a_header_claims_is_not_believed(tmp_path, content, said):
    """One line that names file and array, and hardly any memory."""
    path = packed(tmp_path / "x.npz", x=content)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=said) as caught:
            read_npz(path)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_objects_are_not_unpickled(tmp_path):
    """What np.savez makes of a list of unlike things, which is a pickle."""
    np.savez(tmp_path / "x.npz", labels=np.array([{"a": 1}, 2], dtype=object))
    with pytest.raises(DataError, match=r"x\.npz: 'labels': expected numbers or texts, found Python objects"):
        read_npz(tmp_path / "x.npz")


@KEEP
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_damage_ends_in_arrays_or_a_data_error(tmp_path, changes):
    """Bytes changed anywhere."""
    file = io.BytesIO()
    np.savez_compressed(file, **ARRAYS)
    content = bytearray(file.getvalue())
    for place, value in changes:
        content[place % len(content)] = value
    (tmp_path / "x.npz").write_bytes(content)
    try:
        read_npz(tmp_path / "x.npz")
    except DataError as error:
        assert "\n" not in str(error)
