"""Tar shards in webdataset's layout: consecutive members whose names are equal up to the first dot are one sample.

``a/0001.jpg`` and ``a/0001.cls`` are the fields ``jpg`` and ``cls`` of the sample ``a/0001``. Each sample is one run of
bytes in the file, headers included: that is what the index holds, and what is read and taken apart when it is wanted.
Nothing is ever extracted to the disk, so the names of members lead nowhere. Imports no torch.

Source: https://github.com/webdataset/webdataset (the layout)
"""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from unisono.errors import DataError

_BLOCK = tarfile.BLOCKSIZE
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
_WHOLE = "Hint: write it again; a sample's files follow one another, as `tar --sort=name` puts them"


def scan_tar(path: Path) -> Iterator[tuple[int, int]]:
    """Yield where each sample begins and how many bytes it has.

    Raises:
        DataError: It is no tar, cut short, with sparse files, or a sample's files do not follow one another.
    """
    keys: set[str] = set()
    fields: set[str] = set()
    key, begin, end = "", 0, 0
    try:
        with tarfile.open(path, "r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # it keeps every header
                if member.size < 0 or member.issparse():
                    raise DataError(
                        f"{path}: expected files as they are, found {member.name!r} with holes, or of less than no "
                        "bytes. Hint: pack it without --sparse."
                    )
                named = _split(member.name) if member.isreg() else None
                if named is None:
                    continue
                if named[0] != key:
                    if fields:
                        yield begin, end - begin
                    key, begin, fields = named[0], member.offset, set()
                    if key in keys:
                        raise DataError(
                            f"{path}: expected the files of sample {key!r} together, found others between. {_WHOLE}."
                        )
                    keys.add(key)
                if named[1] in fields:
                    raise DataError(f"{path}: expected {member.name!r} once, found it twice. {_WHOLE}.")
                fields.add(named[1])
                end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
            _check_end(path, tar.offset)
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"{path}: expected a whole tar, found: {error}. Hint: fetch or write it again.") from None
    if fields:
        yield begin, end - begin


def read_tar(raw: bytes) -> dict[str, bytes | str]:
    """Return the fields of a sample by their endings, and its name as ``__key__``.

    Raises:
        tarfile.TarError: The bytes are not those of a sample.
        ValueError: As before.
    """
    record: dict[str, bytes | str] = {}
    for name, begin, size in _plain_members(raw) or _members(raw):
        named = _split(name)
        if named is not None:
            record["__key__"], record[named[1]] = named[0], raw[begin : begin + size]
    return record


def _members(raw: bytes) -> list[tuple[str, int, int]]:
    """Return name, begin and size of each file in a tar."""
    with tarfile.TarFile(fileobj=io.BytesIO(raw)) as tar:
        return [(member.name, member.offset_data, member.size) for member in tar if member.isreg()]


def _plain_members(raw: bytes) -> list[tuple[str, int, int]] | None:
    """Return the same in a tenth of the time; None where a header is more than one block of texts and octal digits.

    Source: https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html (ustar interchange format)
    """
    found: list[tuple[str, int, int]] = []
    at = 0
    while at < len(raw):
        header = raw[at : at + _BLOCK]
        if header[156:157] not in _REGULAR or header[124] & 0x80:
            return None
        name = _text(header[:100])
        if header[257:263] == b"ustar\0" and header[345]:
            name = f"{_text(header[345:500])}/{name}"
        size = int(header[124:136].strip(b" \0") or b"0", 8)
        found.append((name, at + _BLOCK, size))
        at += _BLOCK + -(-size // _BLOCK) * _BLOCK
    return found


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _split(name: str) -> tuple[str, str] | None:
    """Return the sample's name and the field's; None for what belongs to no sample: hidden files, names without dot."""
    folder, _, last = name.removeprefix("./").rpartition("/")
    stem, dot, field = last.partition(".")
    if not stem or not dot:
        return None
    return f"{folder}/{stem}" if folder else stem, field.lower()


def _check_end(path: Path, offset: int) -> None:
    """Refuse a tar that does not end in zeros, which tarfile takes for its end too."""
    with path.open("rb") as file:
        file.seek(offset)
        rest = file.read(_BLOCK)
        if len(rest) == _BLOCK and not any(rest):
            while piece := file.read(1 << 20):
                if any(piece):
                    raise DataError(
                        f"{path}: expected nothing behind the tar's end at byte {offset:,}, found more. Hint: several "
                        "tars one behind the other are not read; make one of them, or several files."
                    )
            return
    raise DataError(
        f"{path}: expected a header or the end of the tar at byte {offset:,} of {path.stat().st_size:,}, found "
        "neither. Hint: it is cut short or damaged, fetch or write it again."
    )
