"""The table of the fault matrix says what is true: all rows are there, and each test that it names exists."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "faults.md"
NAME = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows(text: str) -> dict[int, str]:
    """Return the last column of the table, by row."""
    return {int(found[1]): found[2] for found in re.finditer(r"^\| (\d+) \|.*\| ([^|]+) \|$", text, re.MULTILINE)}


def missing(text: str) -> list[str]:
    """Return the tests that are named but do not exist."""
    defined: dict[str, set[str]] = {}
    for file in sorted({file for file, _ in NAME.findall(text)}):
        path = TESTS / file
        tree = ast.parse(path.read_text()) if path.exists() else ast.Module(body=[], type_ignores=[])
        defined[file] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return [f"{file}::{name}" for file, name in NAME.findall(text) if name not in defined[file]]


def test_every_row_is_told():
    """At least 60 rows; but for six at most they name tests, the others a reason."""
    told = rows(TABLE.read_text())
    assert list(told) == list(range(1, len(told) + 1))
    assert len(told) >= 60
    green = [row for row, tests in told.items() if NAME.search(tests)]
    assert len(green) >= len(told) - 6
    assert all("*not run*: " in tests for row, tests in told.items() if row not in green)


def test_every_named_test_exists():
    """No row is called green by a test that is not there; a name that is not there is found."""
    text = TABLE.read_text()
    assert missing(text) == []
    assert missing(text.replace("::test_truncated`", "::test_truncating`")) == [
        "faults/test_files_damage.py::test_truncating"
    ]


def test_pages_say_how_many_rows_there_are():
    """README and pages that count the faults count the rows of the table."""
    count = len(rows(TABLE.read_text()))
    pages = [TABLE.parents[1] / "README.md", TABLE.with_name("why.md"), TABLE.with_name("recovery.md")]
    said = {page.name: re.findall(r"(\d\d+)\s+faults", page.read_text()) for page in pages}
    assert said == {page.name: [str(count)] for page in pages}
