"""Which names compiled functions read, and which attributes they set; where a source has the number of workers (pure).

In: code objects, as Python holds them, so that nothing need be found in a file; or a syntax tree. Out: names, or lines.
Neither types nor aliases are followed: a name is a name.
"""

import ast
import dis
import re
from collections.abc import Iterator
from types import CodeType

WHO = re.compile(
    r"\bworld\.(rank|local_rank|world_size|size)\b|\bget_(rank|world_size)\(\)"
    r"|\b(environ(\.get)?|getenv)[\[(]['\"](LOCAL_)?(RANK|WORLD_SIZE)['\"]"
)
"""In a source: this worker's number, or how many there are."""
_ARITHMETIC = re.compile(r"(int|float|max|min|abs|round|pow|(math\.)?sqrt)")

_READS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CONST")
_NOT_CALLED = ("__init__", "__repr__", "__str__", "__setattr__", "__post_init__", "__getstate__", "__setstate__")


def made_of_itself(kind: type) -> set[str]:
    """Return the attributes that a class's methods set where they also read what they have set: ``self.k += 1``."""
    found = set[str]()
    for method in (each for base in kind.__mro__ for each in vars(base).values()):
        if (code := getattr(method, "__code__", None)) is not None and code.co_name not in _NOT_CALLED:
            read, written = _instructions(code)
            found |= written if read & written else set()
    return found


def accessed(codes: list[tuple[CodeType, bool]]) -> tuple[set[str], set[str]]:
    """Return the names that a loss reads, and those that it writes: in functions and methods that it may call."""
    read, written, left = set[str](), set[str](), codes
    while called := [code for code, is_method in left if not is_method or _may_be_called(code.co_name, read)]:
        left = [each for each in left if each[0] not in called]
        for code in called:
            more_read, more_written = _instructions(code)
            read, written = read | more_read, written | more_written
    return read, written


def _may_be_called(name: str, read: set[str]) -> bool:
    return name in read or (name.startswith("__") and name not in _NOT_CALLED) or name == "forward"


def _instructions(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names (and constant keys) that a function reads, and the attributes that it writes."""
    read, written = set[str](), set[str]()
    for each in dis.get_instructions(code):
        if each.opname in _READS and isinstance(each.argval, str):
            read.add(each.argval)
        elif each.opname == "STORE_ATTR":
            written.add(each.argval)
        elif isinstance(each.argval, CodeType):
            inner_read, inner_written = _instructions(each.argval)
            read, written = read | inner_read, written | inner_written
    return read, written


def rates_of_workers(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of calls with a learning rate (``lr=``) that is computed from the number of workers."""
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            values.setdefault(ast.unparse(node.targets[0]), []).append(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            parts = [part for keyword in node.keywords if keyword.arg == "lr" for part in ast.walk(keyword.value)]
            has_choice = any(isinstance(part, ast.IfExp) for part in parts)  # nobody knows which one is taken
            found = (isinstance(part, ast.expr) and _is_of_workers(part, values, frozenset()) for part in parts)
            if not has_choice and any(found):
                yield node.lineno


def _is_of_workers(value: ast.expr, values: dict[str, list[ast.expr]], seen: frozenset[str]) -> bool:
    """Whether an expression has the number of workers in it, by itself or by arithmetic with names that have."""
    if isinstance(value, ast.BinOp):
        return _is_of_workers(value.left, values, seen) or _is_of_workers(value.right, values, seen)
    text = ast.unparse(value)
    if isinstance(value, ast.Call) and _ARITHMETIC.fullmatch(ast.unparse(value.func)):
        return any(_is_of_workers(each, values, seen) for each in value.args)
    is_plain = not isinstance(value, ast.Call) or all(isinstance(each, ast.Constant) for each in value.args)
    if isinstance(value, ast.Attribute | ast.Call | ast.Subscript) and is_plain and WHO.search(text):
        return True
    is_known = isinstance(value, ast.Name | ast.Attribute) and text in values and text not in seen
    return is_known and any(_is_of_workers(each, values, seen | {text}) for each in values[text])
