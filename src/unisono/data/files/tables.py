"""Labelled texts in files of the user's own: CSV, TSV, JSON lines, or a folder per class.

In: a path. Out: rows of text and label, each with the place it came from. A row that is no such row is an error that
names file and line, or is skipped and counted where that was asked for; never guessed at. Imports no torch.
"""

import codecs
import contextlib
import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, final

from unisono.data.files.idx import GZIP_MAGIC, gunzip
from unisono.errors import ConfigError, DataError
from unisono.options.quantities import shown

MAX_FIELD = 1 << 24
"""Characters: a longer field is taken for a quote that was never closed."""
MAX_FILE = 1 << 33
"""Bytes of a file when decompressed."""
DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
NUM_SHOWN = 5
NO_LABEL = "-"


class LabelledText(NamedTuple):
    """One labelled text; `place` is ``file, line n`` or the name of its own file."""

    text: str
    label: str
    place: str


@final
@dataclass(slots=True)
class Broken:
    """What happens to broken rows: refused at once, or counted."""

    skip: bool = False  #: Whether to go on.
    count: int = 0  #: How many were skipped.
    first: list[str] = field(default_factory=list)  #: Places and reasons of the first few.

    def add(self, place: str, expected: str, found: str, hint: str = "") -> None:
        """Count a broken row, or refuse it (`DataError`) where rows are not skipped."""
        if not self.skip:
            advice = hint or "correct the row"
            raise DataError(f"{place}: expected {expected}, found {found}. Hint: {advice}, or pass --skip-broken.")
        self.count += 1
        if len(self.first) < NUM_SHOWN:
            self.first.append(f"{place}: expected {expected}, found {found}")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Where text and label stand (None: nobody asks for labels), and how bytes are read."""

    text: str = "text"
    label: str | None = "label"
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.encoding)
            with contextlib.suppress(UnicodeDecodeError):  # one byte is no text in each of them
                b"a".decode(self.encoding)  # LookupError for rot13, hex or zip: they decode, but no text
        except (LookupError, ValueError):
            raise ConfigError(
                f"expected an encoding of text that Python knows, got {shown(self.encoding)}. "
                "Hint: utf-8, latin-1, cp1252, utf-16."
            ) from None


def read_rows(path: Path, columns: Columns, broken: Broken) -> list[LabelledText]:
    """Return all rows of a file, in its order, or of a folder, in the order of its names.

    Raises:
        DataError: The file is missing, empty, of another kind, cut short, without the columns, or has a broken row
            that is not to be skipped; no row is left.
    """
    if path.is_dir():
        rows = list(_folder(path, columns, broken))
    else:
        kind = kind_of(path)
        content = _content(path)
        found = _json_lines if kind in JSON_LINES else _table
        rows = list(found(path, _decode(content, path, columns.encoding), columns, broken))
    if not rows:
        raise DataError(
            f"{path}: expected labelled texts, found none that is whole. "
            + (
                "Hint: look at the first skipped ones: " + "; ".join(broken.first)
                if broken.first
                else "Hint: is it empty?"
            )
        )
    return rows


def kind_of(path: Path) -> str:
    """Return the ending that says what a file is, ``.gz`` taken off; `DataError` where it is none that we read."""
    known = (*DELIMITERS, *JSON_LINES)
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    if not suffixes or suffixes[-1] not in known:
        raise DataError(
            f"{path}: expected a folder with a folder per class, or a file that ends in {', '.join(known)} "
            "(or that and .gz). Hint: rename the file after what it holds."
        )
    return suffixes[-1]


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, found: {error.strerror}. Hint: check the path.") from None
    if raw.startswith(GZIP_MAGIC):
        raw = gunzip(raw, path, max_bytes=MAX_FILE)
    if not raw.strip():
        raise DataError(f"{path}: expected labelled texts, found an empty file. Hint: check what wrote it.")
    return raw


def _decode(raw: bytes, path: Path, encoding: str) -> str:
    """Return the text; a byte that UTF-8 does not know stays visible as a lone surrogate, and its row is broken."""
    name = encoding.lower().replace("_", "-")
    if name in ("utf-8", "utf8"):
        return raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="surrogateescape")
    try:
        return raw.decode(encoding)
    except UnicodeError as error:
        raise DataError(f"{path}: expected {encoding}, found: {error}. Hint: pass its --encoding.") from None


def _wrong_byte(text: str) -> str | None:
    """Return the first byte that was no UTF-8, as it is shown in a message."""
    return next((f"byte {ord(char) - 0xDC00:#04x}" for char in text if 0xDC80 <= ord(char) <= 0xDCFF), None)


def _row(text: str | None, label: str | None, place: str, broken: Broken) -> Iterator[LabelledText]:
    """Yield the row if it is whole."""
    wrong = _wrong_byte((text or "") + (label or ""))
    if wrong is not None:
        broken.add(place, "UTF-8", wrong, "pass its --encoding (latin-1, cp1252, ...)")
    elif text is None or not text.strip():
        broken.add(place, "a text", "an empty one")
    elif label is None or not label.strip():
        broken.add(place, "a label", "an empty one")
    else:
        yield LabelledText(text, label.strip(), place)


def _table(path: Path, text: str, columns: Columns, broken: Broken) -> Iterator[LabelledText]:
    """Yield the rows of a CSV or TSV file; its first line names the columns."""
    csv.field_size_limit(MAX_FIELD)
    delimiter = DELIMITERS[kind_of(path)]
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        line = lines.line_num + 1
        place = f"{path}, line {line}"
        try:
            row = next(lines)
        except StopIteration:
            return
        except csv.Error as error:
            broken.add(place, "a row of a table", str(error), "close or double the quotes")
            continue
        if header is None:
            header = row
            text_at = _column(path, header, columns.text, "--text-column")
            label_at = None if columns.label is None else _column(path, header, columns.label, "--label-column")
        elif not row:
            continue  # an empty line
        elif len(row) != len(header):
            broken.add(place, f"{len(header)} columns", f"{len(row)}", f"quote texts that hold {delimiter!r}")
        else:
            yield from _row(row[text_at], NO_LABEL if label_at is None else row[label_at], place, broken)


def _column(path: Path, header: list[str], name: str, flag: str) -> int:
    if header.count(name) != 1:
        if (wrong := _wrong_byte("".join(header))) is not None:
            raise DataError(
                f"{path}, line 1: expected the names of columns in UTF-8, found {wrong}. "
                "Hint: is it a table? If so, pass its --encoding (latin-1, cp1252, ...)."
            )
        listed = ", ".join(map(repr, header[:12]))
        raise DataError(f"{path}, line 1: expected a column {name!r} once, found {listed}. Hint: name it with {flag}.")
    return header.index(name)


def _json_lines(path: Path, text: str, columns: Columns, broken: Broken) -> Iterator[LabelledText]:
    """Yield the rows of a file with one JSON object a line."""
    for number, line in enumerate(text.split("\n"), start=1):
        place = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            wrong = _wrong_byte(line)
            broken.add(place, "a JSON object", wrong or str(error))
            continue
        except RecursionError:
            broken.add(place, "a JSON object", "lists or objects nested without end")
            continue
        names = (columns.text, columns.label or columns.text)
        missing = [name for name in names if not isinstance(found, dict) or name not in found]
        if missing:
            there = ", ".join(map(repr, list(found)[:12])) if isinstance(found, dict) else type(found).__name__
            hint = "name it with --text-column or --label-column"
            broken.add(place, f"an object with {missing[0]!r}", there or "an empty one", hint)
            continue
        content, label = found[columns.text], NO_LABEL if columns.label is None else found[columns.label]
        if not isinstance(content, str) or not isinstance(label, str | int | bool):
            kinds = f"{type(content).__name__} and {type(label).__name__}"
            broken.add(place, "a text and a label (text, whole number or truth value)", kinds)
            continue
        yield from _row(content, str(label), place, broken)


def _folder(root: Path, columns: Columns, broken: Broken) -> Iterator[LabelledText]:
    """Yield the texts of ``CLASS/*.txt``; follows no link, reads no hidden file."""
    classes = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise DataError(f"{root}: expected a folder per class with .txt files, found no folder. Hint: check the path.")
    for folder in classes:
        for path in sorted(folder.glob("*.txt")):
            if path.is_symlink() or not path.is_file():
                broken.add(str(path), "a regular file", "a link or another kind of file")
                continue
            try:
                content = path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode(columns.encoding)
            except UnicodeError as error:
                broken.add(str(path), columns.encoding, str(error), "pass its --encoding (latin-1, cp1252, ...)")
                continue
            yield from _row(content, folder.name, str(path), broken)
