"""What a client of the store may ask, and what it is answered (pure): one table, one list of byte strings each way.

A question is ``[name, argument, ...]``; the answer ``[b"ok", value, ...]``, ``[b"late"]`` where a wait was in vain, or
``[b"no", reason]``. A question that waits for keys is answered later, by whoever writes them or by the clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from unisono.store.table import Full, KeyTable

OK, LATE, NO = b"ok", b"late", b"no"
MOST_WAIT_MS = 86_400_000


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back, and which keys have got a value by it."""

    fields: list[bytes]
    changed: Sequence[bytes] = ()


@final
@dataclass(frozen=True, slots=True)
class Wait:
    """A question that waits until all its keys are there."""

    keys: list[bytes]  #: Which.
    seconds: float  #: For at most so long.
    wants_values: bool  #: Whether the values are to be sent.


def answer(table: KeyTable, fields: Sequence[bytes]) -> Answer | Wait:
    """Return what follows from a question."""
    name, arguments = fields[0], list(fields[1:])
    act = _ACTS.get(name)
    if act is None or not act[0] <= len(arguments) <= act[1]:
        return Answer([NO, b"no question of this store"])
    try:
        return act[2](table, arguments)
    except Full as error:
        return Answer([NO, str(error).encode()])


def wait_over(table: KeyTable, wait: Wait) -> Answer:
    """Return the answer to a question that has waited: the values, or that it was in vain."""
    if not table.has(wait.keys):
        return Answer([LATE])
    return _values(table, wait.keys) if wait.wants_values else Answer([OK])


def _values(table: KeyTable, keys: Sequence[bytes]) -> Answer:
    found = [table.get(key) for key in keys]
    if sum(map(len, found)) > _MOST_VALUES_BYTES:
        return Answer([NO, b"more bytes than fit one answer"])
    return Answer([OK, *found])


def _wait(table: KeyTable, arguments: list[bytes], wants_values: bool) -> Answer | Wait:
    wait = Wait(arguments[1:], min(max(0, _number(arguments[0])), MOST_WAIT_MS) / 1000, wants_values)
    if table.has(wait.keys) or not wait.seconds:
        return wait_over(table, wait)
    return wait


def _number(text: bytes) -> int:
    try:
        return int(text[:32])
    except ValueError:
        raise Full("expected a number.") from None


def _set(table: KeyTable, arguments: list[bytes]) -> Answer:
    if len(arguments) % 2:
        return Answer([NO, b"expected keys and values in pairs"])
    keys = arguments[::2]
    for key, value in zip(keys, arguments[1::2], strict=True):
        table.set(key, value)
    return Answer([OK], keys)


def _append(table: KeyTable, arguments: list[bytes]) -> Answer:
    table.append(*arguments)
    return Answer([OK], arguments[:1])


def _compare(table: KeyTable, arguments: list[bytes]) -> Answer:
    return Answer([OK, table.compare_set(*arguments)], arguments[:1] if table.has(arguments[:1]) else ())


_MANY = 10_000
_MOST_VALUES_BYTES = 7 << 20
_ACTS: dict[bytes, tuple[int, int, Callable[[KeyTable, list[bytes]], Answer | Wait]]] = {
    b"set": (2, _MANY, _set),
    b"get": (2, _MANY, lambda table, arguments: _wait(table, arguments, wants_values=True)),
    b"wait": (1, _MANY, lambda table, arguments: _wait(table, arguments, wants_values=False)),
    b"check": (0, _MANY, lambda table, arguments: Answer([OK, b"%d" % table.has(arguments)])),
    b"add": (2, 2, lambda table, args: Answer([OK, b"%d" % table.add(args[0], _number(args[1]))], args[:1])),
    b"compare": (3, 3, _compare),
    b"append": (2, 2, _append),
    b"delete": (1, 1, lambda table, arguments: Answer([OK, b"%d" % table.delete(arguments[0])])),
    b"drop": (1, 1, lambda table, arguments: Answer([OK, b"%d" % table.drop(arguments[0])])),
    b"count": (0, 0, lambda table, arguments: Answer([OK, b"%d" % len(table)])),
}
"""By name: fewest and most arguments, and what it does."""
