"""Own labelled texts: every broken row is named with file and line, or counted; nothing is guessed."""

import gzip
import json

import pytest

from unisono.data.files import tables
from unisono.data.files.tables import Broken, Columns, read_rows
from unisono.errors import ConfigError, DataError

GOOD = 'text,label\n"good, film",pos\nbad film,neg\n'


def rows(path, *, skip=False, **columns):
    broken = Broken(skip=skip)
    found = read_rows(path, Columns(**columns), broken)
    return [(row.text, row.label) for row in found], broken


def write(tmp_path, content, name="my.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


PAIRS = [("good, film", "pos"), ("bad film", "neg")]
LINES = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in PAIRS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("my.csv", GOOD),
        ("my.csv", GOOD.replace("\n", "\r\n")),
        ("my.csv", b"\xef\xbb\xbf" + GOOD.encode()),
        ("MY.CSV.gz", gzip.compress(GOOD.encode(), mtime=0)),
        ("my.tsv", "label\ttext\npos\tgood, film\n\nneg\tbad film\n"),
        ("my.jsonl", LINES),
        ("my.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)),
    ],
)
def test_the_same_rows_from_every_format(tmp_path, name, content):
    """Comma, tab, JSON lines, gzipped or with a byte order mark."""
    assert rows(write(tmp_path, content, name))[0] == PAIRS


def test_a_quoted_text_may_have_lines(tmp_path):
    """A field goes on over a line end, and the place of the next row counts it."""
    path = write(tmp_path, 'text,label\n"one\ntwo",pos\nthree,neg,\n')
    with pytest.raises(DataError, match=r"my\.csv, line 4: expected 2 columns, found 3"):
        rows(path)
    assert rows(path, skip=True)[0] == [("one\ntwo", "pos")]


def test_a_folder_per_class(tmp_path):
    """The folder's name is the label; files in the order of their names; hidden folders are no class."""
    for name, text in (("pos/b", "fine"), ("pos/a", "good"), ("neg/c", "bad"), (".git/x", "no")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.txt").write_text(text)
    assert rows(tmp_path)[0] == [("bad", "neg"), ("good", "pos"), ("fine", "pos")]


BROKEN = {
    "columns": (b"text,label\na,x\nb,y,z\nc,y\n", "line 3: expected 2 columns, found 3.*quote texts that hold ','"),
    "bytes": (b"text,label\na,x\nb\xff,y\nc,y\n", r"line 3: expected UTF-8, found byte 0xff.*--encoding"),
    "no text": (b"text,label\na,x\n  ,y\nc,y\n", "line 3: expected a text, found an empty one"),
    "no label": (b"text,label\na,x\nb, \nc,y\n", "line 3: expected a label, found an empty one"),
    "a quote in a field": (b'text,label\na,x\n"b"b,y\nc,y\n', "line 3: expected a row of a table, found"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_row_is_named_or_counted(tmp_path, name):
    """File, line, what was expected and found, and what to do; with skipping the others are read, and it is counted."""
    content, message = BROKEN[name]
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=rf"my\.csv, {message}(.|\n)*or pass --skip-broken"):
        rows(path)
    found, broken = rows(path, skip=True)
    assert found == [("a", "x"), ("c", "y")]
    assert broken.count == 1
    assert "line 3" in broken.first[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "b", "label": ', "line 2: expected a JSON object"),
        ('{"text": "b"}', "line 2: expected an object with 'label', found 'text'"),
        ('["b", "y"]', "line 2: expected an object with 'text', found list"),
        ('{"text": 3, "label": "y"}', "line 2: expected a text and a label"),
        ('{"text": "b", "label": 1.5}', "line 2: expected a text and a label"),
    ],
)
def test_a_broken_line_of_json_is_named_or_counted(tmp_path, line, message):
    """The same for JSON lines."""
    path = write(tmp_path, '{"text": "a", "label": 1}\n' + line + '\n{"text": "c", "label": true}\n', "my.jsonl")
    with pytest.raises(DataError, match=message):
        rows(path)
    found, broken = rows(path, skip=True)
    assert found == [("a", "1"), ("c", "True")]
    assert broken.count == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found an empty file"),
        (b"  \n\n", "found an empty file"),
        (b"text,label\n", "found none that is whole"),
        (b"review,mark\na,b\n", "line 1: expected a column 'text' once, found 'review', 'mark'.*--text-column"),
        (b"text,mark\na,b\n", "line 1: expected a column 'label' once.*--label-column"),
        (b"\x8fPNG\r\n\x1a,\xff", "line 1: expected the names of columns in UTF-8, found byte 0x8f.*is it a table"),
        (b"text,label,text\na,b,c\n", "line 1: expected a column 'text' once"),
        (gzip.compress(GOOD.encode() * 50, mtime=0)[:-20], "expected a whole gzip file"),
        (b'text,label\na,x\n"b,y\n', "line 3: expected a row of a table, found unexpected end of data"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, content, message):
    """Empty, without the columns, cut short: said with the file's name."""
    with pytest.raises(DataError, match=rf"my\.csv.*{message}"):
        rows(write(tmp_path, content))


def test_a_file_that_is_too_large_when_decompressed_is_refused(tmp_path, monkeypatch):
    """It is not read as far as the bound, as if it ended there."""
    monkeypatch.setattr(tables, "MAX_FILE", len(GOOD))
    assert rows(write(tmp_path, gzip.compress(GOOD.encode())))[0]
    with pytest.raises(DataError, match=rf"my\.csv: expected at most {len(GOOD)} bytes when decompressed, found more"):
        rows(write(tmp_path, gzip.compress(GOOD.encode() + b"more,rows\n")))


@pytest.mark.parametrize("line", ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_json_nested_without_end_is_a_broken_row(tmp_path, line):
    """It is named with its line, or skipped as others are."""
    path = write(tmp_path, LINES + line + "\n", "my.jsonl")
    with pytest.raises(DataError, match=r"my\.jsonl, line 3: expected a JSON object, found .* nested without end"):
        rows(path)
    assert rows(path, skip=True)[0] == PAIRS


@pytest.mark.parametrize("name", ["rot13", "hex", "base64", "zlib", "bz2", "undefined", "no such", "a\0", "\udcff", ""])
def test_what_decodes_no_text_is_no_encoding(name):
    """Python's codecs that turn bytes into bytes, or text into text, are refused as unknown ones are."""
    with pytest.raises(ConfigError, match=r"expected an encoding of text that Python knows, got .* Hint: utf-8"):
        Columns(encoding=name)


def test_other_files_are_refused(tmp_path):
    """A missing file, an unknown ending, a folder without classes, a wrong encoding."""
    with pytest.raises(DataError, match="expected a readable file"):
        rows(tmp_path / "none.csv")
    with pytest.raises(DataError, match=r"ends in \.csv, \.tsv, \.jsonl"):
        rows(write(tmp_path, "x", "my.xlsx"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="found no folder"):
        rows(tmp_path / "empty")
    with pytest.raises(ConfigError, match="encoding of text that Python knows"):
        Columns(encoding="utf-99")
    with pytest.raises(DataError, match="expected utf-16"):
        rows(write(tmp_path, b"\x00\xd8a"), encoding="utf-16")


def test_another_encoding_is_read(tmp_path):
    """What is no UTF-8 may be Latin-1, once the user says so."""
    path = write(tmp_path, "text,label\ncafé,x\n".encode("latin-1"))
    assert rows(path, encoding="latin-1")[0] == [("café", "x")]
