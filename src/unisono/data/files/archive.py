"""A tar.gz archive as untrusted input: streamed, bounded, never extracted.

In: a path and a pattern of wanted names. Out: names and contents of the matching regular members. Links,
devices and paths that leave the archive are refused wherever they stand; sizes and counts are capped before
memory is spent; an archive that is cut short is an error, not an end. Imports no torch.
"""

import contextlib
import gzip
import math
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self, final

from unisono.errors import DataError

REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
_EXTENDING = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
_MOST_IN_A_ROW = 16
_MOST_HEADER_BYTES = 1 << 20


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveLimits:
    """Bounds that a well-meant archive never reaches and a hostile one cannot pass."""

    member_bytes: int = 1 << 20  #: Largest wanted member.
    num_members: int = 250_000  #: Most members, wanted or not.
    total_bytes: int = 1 << 30  #: Largest decompressed size of the archive.


def stream_members(path: Path, wanted: re.Pattern[str], limits: ArchiveLimits) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each regular member whose whole name matches `wanted`, in archive order.

    A leading ``./`` is taken off names. Other regular members and directories are skipped.

    Raises:
        DataError: The file is missing or no tar.gz; a member is a link, a device, or has an absolute path
            or ``..``; a limit is passed; the archive is cut short or damaged (names the byte).
    """
    try:
        compressed = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: expected a tar.gz archive, found: {error.strerror}. Hint: check the path.") from None
    with compressed:
        try:
            with gzip.GzipFile(fileobj=compressed) as plain:
                yield from _members(_Bounded(plain, path, limits.total_bytes), path, wanted, limits)
        except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
            raise DataError(
                f"{path}: expected a whole tar.gz archive, found near byte {compressed.tell():,} of "
                f"{path.stat().st_size:,}: {error}. Hint: fetch the archive again."
            ) from None


@final
class _Bounded:
    """A stream that refuses to deliver more than a number of bytes; tarfile reads through it."""

    def __init__(self, stream: gzip.GzipFile, path: Path, limit_bytes: int) -> None:
        self._stream = stream
        self._path = path
        self._limit_bytes = limit_bytes
        self._read_bytes = 0
        self._header_end_bytes = math.inf

    @contextlib.contextmanager
    def header(self) -> Iterator[None]:
        """Deliver no more than a header needs while one is read; such a header may hold others."""
        is_outer = self._header_end_bytes == math.inf
        if is_outer:
            self._header_end_bytes = self._read_bytes + _MOST_HEADER_BYTES
        try:
            yield
        finally:
            if is_outer:
                self._header_end_bytes = math.inf

    def read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        self._read_bytes += len(piece)
        if self._read_bytes > self._header_end_bytes:
            raise tarfile.ReadError(f"a header of more than {_MOST_HEADER_BYTES:,} bytes")
        if self._read_bytes > self._limit_bytes:
            raise DataError(
                f"{self._path}: expected at most {self._limit_bytes:,} bytes when decompressed, found more. "
                "Hint: this is not the data set."
            )
        return piece


def _strict(stream: _Bounded) -> type[tarfile.TarInfo]:
    """Return how the headers of one archive are read, of which tarfile would believe too much."""

    class Strict(tarfile.TarInfo):
        in_a_row = 0

        @classmethod
        def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
            """Read the next one; `ReadError` where it is none, which tarfile would take for the end of the archive."""
            try:
                with stream.header():
                    return super().fromtarfile(tar)
            except tarfile.InvalidHeaderError as error:  # type: ignore[attr-defined]
                raise tarfile.ReadError(
                    f"a bad header near byte {tar.offset:,} of the decompressed stream ({error})"
                ) from None

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            """Read one block."""
            found = super().frombuf(buf, encoding, errors)
            Strict.in_a_row = Strict.in_a_row + 1 if found.type in _EXTENDING else 0
            if Strict.in_a_row > _MOST_IN_A_ROW:
                raise tarfile.ReadError(f"more than {_MOST_IN_A_ROW} extended headers in a row")
            return found

    return Strict


def _members(
    stream: _Bounded, path: Path, wanted: re.Pattern[str], limits: ArchiveLimits
) -> Iterator[tuple[str, bytes]]:
    """Walk the tar stream from front to back."""
    num_members = 0
    with tarfile.open(fileobj=_as_binary(stream), mode="r|", bufsize=1 << 16, tarinfo=_strict(stream)) as tar:
        while (member := tar.next()) is not None:
            num_members += 1
            if num_members > limits.num_members:
                raise DataError(f"{path}: expected at most {limits.num_members:,} members, found more.")
            # tarfile keeps every header, 100,000 of them for the original IMDB archive.
            tar.members.clear()  # type: ignore[attr-defined]
            name = check_member(member, path, limits)
            if not wanted.fullmatch(name):
                continue
            if member.type not in REGULAR or member.size > limits.member_bytes:
                raise DataError(
                    f"{path}: {name}: expected a regular file of at most {limits.member_bytes:,} bytes, "
                    f"found type {member.type!r} with {member.size:,} bytes."
                )
            content = tar.extractfile(member)
            assert content is not None
            yield name, content.read()
        _check_end(tar, path)


def _as_binary(stream: _Bounded) -> BinaryIO:
    """Say that ``read`` is all that tarfile's stream mode uses."""
    return stream  # type: ignore[return-value]


def check_member(member: tarfile.TarInfo, path: Path, limits: ArchiveLimits) -> str:
    """Return a member's name without a leading ``./``; refuse what no data set needs.

    Raises:
        DataError: A link, a device, a pipe, an absolute path or one with ``..``, or an impossible size.
    """
    # Before anything is skipped: tarfile would read on for years over a size of 2**60 in a short file.
    if not 0 <= member.size <= limits.total_bytes:
        raise DataError(
            f"{path}: {member.name!r}: expected a size of 0 to {limits.total_bytes:,} bytes, "
            f"found {member.size:,}. Hint: do not use this archive."
        )
    name = member.name
    while name.startswith("./"):
        name = name[2:]
    if name.startswith("/") or ".." in name.split("/"):
        raise DataError(
            f"{path}: {member.name!r}: expected a path inside the archive, found one that leaves it. "
            "Hint: do not use this archive."
        )
    if not (member.isreg() or member.isdir()):
        raise DataError(
            f"{path}: {member.name!r}: expected files and directories only, found tar type {member.type!r} "
            "(a link, device or pipe). Hint: do not use this archive."
        )
    return name


def _check_end(tar: tarfile.TarFile, path: Path) -> None:
    """Refuse an archive that does not end as one.

    A tar ends with two zero blocks; tarfile has read the first, so at least one block of zeros and nothing
    else may follow. Reading to the end also makes gzip verify its checksum.

    Raises:
        DataError: Names the byte.
    """
    rest_bytes = 0
    stream = tar.fileobj
    assert stream is not None
    while piece := stream.read(1 << 16):
        if piece.strip(b"\0"):
            raise DataError(
                f"{path}: expected a tar header or the end near byte {tar.offset:,} of the decompressed "
                "stream, found neither. Hint: fetch the archive again."
            )
        rest_bytes += len(piece)
    if rest_bytes < tarfile.BLOCKSIZE:
        raise DataError(
            f"{path}: expected two zero blocks at the end of the archive, found its end at byte "
            f"{tar.offset + rest_bytes:,} of the decompressed stream. Hint: it is cut short, fetch it again."
        )
