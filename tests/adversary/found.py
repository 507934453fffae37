"""What a case may end with besides success: something was found."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class Found(Exception):
    """The product broke its word: other bits, an adopted lie, a raw traceback, a hang, an orphan."""


class Missed(Exception):
    """The case did not take place: a kill that came after the work was done."""


def check(is_right: Any, what: str) -> None:
    """Raise `Found` with these words unless it is right."""
    if not is_right:
        raise Found(what)


@contextlib.contextmanager
def limited(seconds: int, what: str) -> Iterator[None]:
    """End what takes longer, in the main thread, as `Found`: it hangs."""

    def end(*_: object) -> None:
        raise Found(f"{what} took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
