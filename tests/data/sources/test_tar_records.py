"""Samples of a tar are found, read alone, and taken apart as tarfile would; what is no whole tar is refused."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_files import tar_bytes
from unisono.data.sources.tar_records import _members, _plain_members, read_tar, scan_tar
from unisono.errors import DataError

SAMPLES = {
    "./a/0001": {"jpg": b"x" * 700, "CLS": b"3"},
    "a/0002": {"seg.png": b"", "txt": b"y" * 512},
    "b/0001": {"json": b"{}"},
}
FORMS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def found_in(path):
    content = path.read_bytes()
    return [read_tar(content[begin : begin + length]) for begin, length in scan_tar(path)]


@pytest.mark.parametrize("form", FORMS)
def test_samples_are_read_alone(form, tmp_path):
    """Each by its own bytes; fields by the ending behind the first dot, in small letters."""
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes(SAMPLES, FORMS[form]))
    assert found_in(path) == [
        {"__key__": "a/0001", "jpg": b"x" * 700, "cls": b"3"},
        {"__key__": "a/0002", "seg.png": b"", "txt": b"y" * 512},
        {"__key__": "b/0001", "json": b"{}"},
    ]


def test_what_is_no_sample_is_left_out(tmp_path):
    """Folders, links, hidden files and names without a dot, also between the files of a sample."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind in (
            ("in", tarfile.DIRTYPE), ("in/.DS_Store", tarfile.REGTYPE), ("in/1.jpg", tarfile.REGTYPE),
            ("in/1.lnk", tarfile.SYMTYPE), ("in/README", tarfile.REGTYPE), ("in/1.cls", tarfile.REGTYPE),
        ):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "elsewhere"
            member.size = 3 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"abc"))
    path = tmp_path / "a.tar"
    path.write_bytes(buffer.getvalue())
    assert found_in(path) == [{"__key__": "in/1", "jpg": b"abc", "cls": b"abc"}]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.text("aé/.b", min_size=1, max_size=130), st.binary(max_size=1100)), min_size=1, max_size=4),
    st.sampled_from(sorted(FORMS)),
)
def test_the_short_way_finds_what_tarfile_finds(members, form):
    """Or says that it cannot: names and sizes of any length, in every format that Python writes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=FORMS[form]) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name.strip("/") or "x")
            member.size = len(content)
            try:
                tar.addfile(member, io.BytesIO(content))
            except ValueError:
                return  # a name that USTAR cannot hold
    raw = buffer.getvalue()
    ends = [m.offset_data + -(-m.size // 512) * 512 for m in tarfile.TarFile(fileobj=io.BytesIO(raw)).getmembers()]
    sample = raw[: max(ends, default=0)]
    short = _plain_members(sample)
    assert short is None or short == _members(sample)
    if form == "ustar":
        assert short is not None


def damaged(how, content):
    if how == "in a file":
        return content[:900]
    if how == "in a header":
        return content[:1200]
    if how == "without an end":
        return content[: 512 * 10]
    if how == "a header is overwritten":
        return content[:1536] + b"?" * 512 + content[2048:]
    if how == "nothing":
        return b""
    if how == "no tar":
        return b"hello " * 400
    return content + content  # two of them


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ("in a file", "expected a whole tar, found: unexpected end of data"),
        ("in a header", "found"),
        ("without an end", r"expected a header or the end of the tar at byte 5,120 of 5,120"),
        ("a header is overwritten", r"expected a header or the end of the tar at byte 1,536"),
        ("nothing", "expected a whole tar, found: empty file"),
        ("no tar", "expected a whole tar, found"),
        ("two of them", r"expected nothing behind the tar's end"),
    ],
)
def test_what_is_no_whole_tar_is_refused(how, match, tmp_path):
    """Half of these are an end for tarfile itself."""
    path = tmp_path / "a.tar"
    whole = tar_bytes(SAMPLES)
    path.write_bytes(damaged(how, whole))
    with pytest.raises(DataError, match=match):
        list(scan_tar(path))
    path.write_bytes(whole)  # the control
    assert len(list(scan_tar(path))) == 3


def test_files_with_holes_are_refused(tmp_path):
    """Their bytes do not lie in the tar as they are; and a size below nothing would lead tarfile back for ever."""
    path = tmp_path / "a.tar"
    member = tarfile.TarInfo("1.bin")
    member.type = tarfile.GNUTYPE_SPARSE
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(DataError, match=r"'1\.bin' with holes"):
        list(scan_tar(path))
    member = tarfile.TarInfo("1.bin")
    member.size = -512
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(DataError, match="of less than no bytes"):
        list(scan_tar(path))


def test_files_of_a_sample_must_follow_one_another(tmp_path):
    """Else it would be two samples, each with half of the fields."""
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes({"1": {"jpg": b"", "cls": b""}, "2": {"jpg": b""}, "./1": {"txt": b""}}))
    with pytest.raises(DataError, match=r"expected the files of sample '1' together.*tar --sort=name"):
        list(scan_tar(path))
    path.write_bytes(tar_bytes({"1": {"jpg": b"", "JPG": b""}}))
    with pytest.raises(DataError, match=r"expected '1\.JPG' once, found it twice"):
        list(scan_tar(path))
