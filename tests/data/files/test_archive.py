"""A hostile or damaged archive is refused before it can cost memory, files or a silent loss of samples."""

import gzip
import io
import re
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unisono.data.files.archive import ArchiveLimits, stream_members
from unisono.errors import DataError

WANTED = re.compile(r"d/\d+\.txt")
LIMITS = ArchiveLimits(member_bytes=1000, num_members=10, total_bytes=100_000)
KEEP = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def member(name, content=b"", kind=tarfile.REGTYPE, **fields):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def build_tar(*members, form=tarfile.PAX_FORMAT):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def read(tmp_path, plain, *, limits=LIMITS, packed=True):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(plain, mtime=0) if packed else plain)
    return list(stream_members(path, WANTED, limits))


GOOD = build_tar(
    member("d", kind=tarfile.DIRTYPE),
    member("d/2.txt", b"two"),
    member("README", b"skipped"),
    member("./d/1.txt", b""),
    member("d/x.txt", b"skipped"),
)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_wanted_members_come_in_archive_order(tmp_path, form):
    """Matching regular members are delivered, ./ is taken off, the rest is skipped."""
    plain = build_tar(member("d/2.txt", b"two"), member("n/" + "x" * 98, b"-"), member("./d/1.txt"), form=form)
    assert read(tmp_path, plain) == [("d/2.txt", b"two"), ("d/1.txt", b"")]
    assert read(tmp_path, GOOD) == [("d/2.txt", b"two"), ("d/1.txt", b"")]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (member("d/3.txt", kind=tarfile.SYMTYPE, linkname="/etc/passwd"), "tar type b'2'"),
        (member("link", kind=tarfile.SYMTYPE, linkname="d/2.txt"), "tar type b'2'"),
        (member("d/3.txt", kind=tarfile.LNKTYPE, linkname="d/2.txt"), "tar type b'1'"),
        (member("d/3.txt", kind=tarfile.CHRTYPE), "tar type b'3'"),
        (member("disk", kind=tarfile.BLKTYPE), "tar type b'4'"),
        (member("pipe", kind=tarfile.FIFOTYPE), "tar type b'6'"),
        (member("d/3.txt", kind=tarfile.CONTTYPE), "expected a regular file"),
        (member("../d/3.txt", b"x"), "one that leaves it"),
        (member("d/../../3.txt", b"x"), "one that leaves it"),
        (member("/d/3.txt", b"x"), "one that leaves it"),
        (member(".//etc/passwd", b"x"), "one that leaves it"),
        (member("././/d/3.txt", b"x"), "one that leaves it"),
        (member("d/3.txt", bytes(1001)), "at most 1,000 bytes, found type b'0' with 1,001 bytes"),
        (member("other", bytes(99_000)), "at most 100,000 bytes when decompressed"),
        (member("other", bytes(200_000)), "size of 0 to 100,000 bytes, found 200,000"),
        (
            member("d/3.txt", pax_headers={"comment": "x" * 200_000}),
            "at most 100,000 bytes when decompressed",
        ),
        # Later Pythons' tarfile has no word for such a size, and ends there.
        (member("d/3.txt", pax_headers={"size": "-5000"}), r"size of 0 to 100,000 bytes, found -5,000|a bad header"),
        (member("other", pax_headers={"size": str(1 << 60)}), r"size of 0 to 100,000 bytes, found 1,152,9"),
    ],
)
def test_hostile_members_are_refused(tmp_path, bad, message):
    """Links, devices, pipes, escaping paths, oversized members and bombs are errors that name the archive."""
    plain = build_tar(member("d/2.txt", b"two"), bad)
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path, plain)
    assert str(tmp_path / "a.tar.gz") in str(caught.value)


def test_headers_without_end_are_refused_early(tmp_path):
    """Extended headers that hold each other 10,000 deep, and one of 64 MiB: an error after 1 MiB of them at most."""
    block = tarfile.TarInfo("x")
    block.type = tarfile.XHDTYPE
    nested = block.tobuf() * 10_000 + build_tar(member("d/2.txt", b"two"))
    large = build_tar(member("d/2.txt", b"two", pax_headers={"comment": "x" * (64 << 20)}))
    limits = ArchiveLimits(total_bytes=1 << 30)
    for plain, said in ((nested, "more than 16 extended headers in a row"), (large, "a header of more than 1,048,576")):
        with pytest.raises(DataError, match=said) as caught:
            read(tmp_path, plain, limits=limits)
        assert str(tmp_path / "a.tar.gz") in str(caught.value)
    fair = build_tar(*(member("d/2.txt", b"two", pax_headers={"comment": "x" * 900_000}) for _ in range(3)))
    assert len(read(tmp_path, fair, limits=limits)) == 3, "each header has its own room"


def test_a_bad_header_is_not_the_end(tmp_path):
    """Tarfile takes it for one; where it is the last header, only zeros follow, as after a whole archive."""
    last = bytearray(build_tar(member("d/2.txt", b"two"), member("d/3.txt")))
    last[1024 + 148] ^= 1  # of the checksum
    with tarfile.open(fileobj=io.BytesIO(last)) as tar:
        assert tar.getnames() == ["d/2.txt"]  # the control
    with pytest.raises(DataError, match="a bad header"):
        read(tmp_path, bytes(last))


def test_too_many_members_are_refused(tmp_path):
    """The cap counts all members, wanted or not."""
    assert read(tmp_path, build_tar(*[member(f"n{i}") for i in range(10)])) == []
    with pytest.raises(DataError, match="at most 10 members"):
        read(tmp_path, build_tar(*[member(f"n{i}") for i in range(11)]))


def test_every_cut_of_the_gzip_is_refused(tmp_path):
    """Any missing end is a DataError with the approximate byte, never fewer samples."""
    packed = gzip.compress(GOOD, mtime=0)
    for cut in range(len(packed)):
        with pytest.raises(DataError, match=rf"near byte [\d,]+ of {cut:,}"):
            read(tmp_path, packed[:cut], packed=False)


def test_cut_or_broken_tar_inside_a_whole_gzip_is_refused(tmp_path):
    """A bad header, which tarfile takes for the end of the archive, is an error."""
    end = max(index for index in range(0, len(GOOD), 512) if GOOD[index : index + 512].strip(b"\0")) + 512
    assert read(tmp_path, GOOD[: end + 1024]) == read(tmp_path, GOOD)
    for cut in (*range(1, end + 1024, 101), end, end + 512, end + 1023):
        with pytest.raises(DataError):
            read(tmp_path, GOOD[:cut])
    middle = GOOD.index(b"README")
    with pytest.raises(DataError, match=r"a bad header near byte [\d,]+ of the decompressed stream"):
        read(tmp_path, GOOD[:middle] + b"\xff" * 512 + GOOD[middle + 512 :])
    with pytest.raises(DataError, match="expected a tar header or the end near byte"):
        read(tmp_path, GOOD[: end + 512] + b"\xff" * 512)


@KEEP
@given(st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=8))
def test_any_damage_ends_in_a_result_or_a_data_error(tmp_path, changes):
    """Changed bytes never lead to another exception, an endless loop or an unbounded read."""
    plain = bytearray(GOOD)
    for position, value in changes:
        plain[position] = value
    try:
        found = read(tmp_path, bytes(plain))
    except DataError:
        return
    assert len(found) <= LIMITS.num_members
    assert all(len(content) <= LIMITS.member_bytes for _, content in found)


def test_not_an_archive_and_missing_archive(tmp_path):
    """Other files and missing ones are DataErrors."""
    with pytest.raises(DataError, match="Not a gzipped file"):
        read(tmp_path, b"plain text", packed=False)
    with pytest.raises(DataError, match="No such file"):
        list(stream_members(tmp_path / "gone", WANTED, LIMITS))
