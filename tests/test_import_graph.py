"""The files' import graph: no circles, type hints and imports inside functions included; rooms small enough to see."""

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
MOST_FILES = 16


def imported(source: str, known: Mapping[str, object]) -> set[str]:
    """Return the modules among `known` that a source imports, wherever it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else str(node.module) for name in inner}
    return found


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return what is left when modules that import nothing that is left are taken away again and again."""
    left = {name: set(targets) for name, targets in graph.items()}
    while free := {name for name, targets in left.items() if not targets & left.keys()}:
        left = {name: targets for name, targets in left.items() if name not in free}
    # Modules that only lead to a circle are not part of it.
    while free := {name for name in left if not any(name in targets for targets in left.values())}:
        left = {name: targets for name, targets in left.items() if name not in free}
    return [sorted(left)] if left else []


def graph() -> dict[str, set[str]]:
    """Return every module but the public face with what it imports."""
    inner = {name: path for name, path in MODULES.items() if name != "unisono"}
    return {name: imported(path.read_text(), inner) - {name} for name, path in inner.items()}


def test_no_circles():
    """No file imports itself by way of others."""
    found = graph()
    assert len(found) > 300
    assert sum(map(len, found.values())) > 1000
    assert circles(found) == []


@pytest.mark.parametrize(
    "line", ["import unisono.b", "from unisono import b", "from unisono.b import x", "def f():\n import unisono.b"]
)
def test_a_circle_would_be_found(line):
    """The control: by every way to import; who only leads there is not accused."""
    known = {"unisono": 0, "unisono.a": 0, "unisono.b": 0, "unisono.c": 0}
    made = {
        "unisono.a": imported(line, known),
        "unisono.b": imported("from unisono.a import y", known),
        "unisono.c": imported("import unisono.a", known),
    }
    assert circles(made) == [["unisono.a", "unisono.b"]]


def test_rooms_are_small():
    """No room has more than 16 files at one level, besides its `__init__.py`."""
    rooms = {path.parent for path in MODULES.values()}
    counts = {str(room.relative_to(SOURCE)): len({*room.glob("*.py")} - {room / "__init__.py"}) for room in rooms}
    assert len(counts) > 20
    assert {room: count for room, count in counts.items() if count > MOST_FILES} == {}
