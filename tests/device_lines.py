"""Which statements only a GPU reaches, and which of them no test has run: the tables of docs/design/gpu-lines.md.

    python tests/device_lines.py [DATA]

writes them anew, from what coverage has seen of the tests of devices (`make gpu-lines`). A statement counts where a
condition says that there is a GPU (`implies`), or in a file that is about GPUs alone.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE, PAGE = ROOT / "src" / "unisono", ROOT / "docs" / "design" / "gpu-lines.md"
ABOUT_GPUS = ("determinism/devices.py", "determinism/device_reads.py", "determinism/device_rows.py")
_SAY_SO = {"is_gpu", "check_own_devices", "_has_gpus", "on_gpu", "cuda"}
_BEGIN, _END = "<!-- written by make gpu-lines -->\n", "<!-- until here -->\n"
_DEVICES = {"type", "kind", "device"}  # what a name of a device is compared with
_ERRORS = {"OutOfMemoryError", "AcceleratorError"}


class Statement(NamedTuple):
    """A statement that only a GPU reaches."""

    file: str  #: Below src/unisono.
    line: int
    function: str
    text: str  #: Its first line.


def implies(test: ast.expr, truth: bool) -> bool:
    """Whether there is a GPU wherever a condition is true, or false."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return implies(inner, not truth)
        case ast.BoolOp(op=op, values=parts):
            every = [implies(part, truth) for part in parts]
            return any(every) if isinstance(op, ast.And) is truth else all(every)
        case ast.Call(func=ast.Name("any"), args=[ast.GeneratorExp(elt=each)]):
            return truth and implies(each, True)
        case ast.Call(func=called):
            return truth and _name(called) in _SAY_SO
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compared(left, op, right, truth)
    return truth and _name(test) in _SAY_SO


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr, truth: bool) -> bool:
    if isinstance(op, ast.In) and _name(right) == "KINDS":
        return truth
    values = [each.value for each in (left, right) if isinstance(each, ast.Constant)]
    is_same = isinstance(op, (ast.Eq, ast.In, ast.Is))
    is_read_at_once = None in values and _name(left).endswith("reads")
    if is_read_at_once or ("cpu" in values and _name(left) in _DEVICES):
        return truth is not is_same
    return bool({"nccl", "cuda"} & {*map(str, values)}) and truth is is_same


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _in_block(block: list[ast.stmt], function: str, is_there: bool) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the statements of a block that only a GPU reaches, each with its function."""
    for node in block:
        if is_there and function and not isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not _is_docstring(node):
            yield node, function
        if isinstance(node, ast.FunctionDef):
            yield from _in_block(node.body, node.name, is_there)
        elif isinstance(node, ast.If):
            yield from _in_block(node.body, function, is_there or implies(node.test, True))
            yield from _in_block(node.orelse, function, is_there or implies(node.test, False))
            is_there |= implies(node.test, False) and isinstance(node.body[-1], (ast.Return, ast.Raise, ast.Continue))
        else:
            yield from _inside(node, function, is_there)


def _inside(node: ast.stmt, function: str, is_there: bool) -> Iterator[tuple[ast.stmt, str]]:
    for field in ("body", "orelse", "finalbody"):
        is_built = isinstance(node, ast.For) and _name(node.iter) == "BUILT"
        yield from _in_block(getattr(node, field, []), function, is_there or is_built)
    for handler in getattr(node, "handlers", []):
        named = {_name(each) for each in ast.walk(handler.type)} if handler.type else set()
        yield from _in_block(handler.body, function, is_there or bool(named & _ERRORS))


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def statements(file: str, source: str) -> list[Statement]:
    """Return the statements of a file that only a GPU reaches."""
    lines = source.splitlines()
    found = _in_block(ast.parse(source).body, "", file in ABOUT_GPUS)
    return [Statement(file, node.lineno, function, lines[node.lineno - 1].strip()) for node, function in found]


def all_statements() -> list[Statement]:
    """Return those of the whole package."""
    files = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
    return [each for file, path in files.items() for each in statements(file, path.read_text())]


def tables(found: list[Statement], unrun: list[Statement]) -> str:
    """Return both tables: each statement that no test has run, and how many there are in each file."""
    rows = [f"| `{one.file}:{one.line}` | `{one.function}` | `{one.text.replace('|', '&#124;')}` |" for one in unrun]
    there, missing = (Counter(one.file for one in some) for some in (found, unrun))
    counts = [f"| `{file}` | {number} | {missing[file]} |" for file, number in there.items()]
    return "\n".join([
        "| where | function | statement |", "|---|---|---|", *rows, "",
        "| file | statements that only a GPU reaches | of these run by no test |", "|---|---|---|", *counts, "",
    ])  # fmt: skip


def told(page: str) -> tuple[list[Statement], dict[str, tuple[int, int]]]:
    """Return what a page lists: the statements that no test has run, and the counts of each file."""
    part = page.partition(_BEGIN)[2].partition(_END)[0]
    rows = re.findall(r"^\| `(\S+):(\d+)` \| `(\w+)` \| `(.*)` \|$", part, re.MULTILINE)
    unrun = [Statement(file, int(line), name, text.replace("&#124;", "|")) for file, line, name, text in rows]
    counts = re.findall(r"^\| `(\S+)` \| (\d+) \| (\d+) \|$", part, re.MULTILINE)
    return unrun, {file: (int(number), int(missing)) for file, number, missing in counts}


def main(data: str = "build/gpu-lines/data") -> None:
    """Write the tables by what coverage has seen."""
    import coverage

    seen = coverage.CoverageData(data)
    seen.read()
    run = {path: set(seen.lines(path) or ()) for path in seen.measured_files()}
    assert len(run) > 50, f"{data} has seen hardly anything"
    found = all_statements()
    unrun = [one for one in found if one.line not in run.get(str(SOURCE / one.file), ())]
    before, begin, rest = PAGE.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert begin and end, f"{PAGE} has no place for the tables"
    PAGE.write_text(before + begin + "\n" + tables(found, unrun) + "\n" + end + after)
    print(f"{len(found)} statements that only a GPU reaches; {len(unrun)} run by no test of devices")


if __name__ == "__main__":
    main(*sys.argv[1:])
