"""Which names compiled functions read, and which attributes they set (pure).

In: code objects, as Python holds them, so that nothing need be found in a file. Out: names. Neither types nor aliases
are followed: a name is a name.
"""

import dis
from types import CodeType

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
