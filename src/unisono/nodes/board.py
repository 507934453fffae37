"""Plain values in torch's store: how launchers tell each other something. JSON, never a pickle."""

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, final

from torch._C._distributed_c10d import PrefixStore, Store

from unisono.errors import PeerLost

T = TypeVar("T")
_POLL_S = 0.1


@final
class Board:
    """JSON values under the keys of a store; no call waits for a value.

    Args:
        store: Where they lie; calls of several threads follow each other.
        prefix: Of all keys.
        cut_off: Asked while a call waits for the network, which may be for minutes: why to give up, empty for not.

    Every call may raise `PeerLost`: the store cannot be reached any more.
    """

    def __init__(self, store: Store, prefix: str, cut_off: Callable[[], str] | None = None) -> None:
        self._store = PrefixStore(prefix, store)
        self._cut_off = cut_off

    def guarded(self, cut_off: Callable[[], str] | None) -> "Board":
        """Return the same board, whose calls give up when `cut_off` says why; None: never."""
        board = Board.__new__(Board)
        board._store, board._cut_off = self._store, cut_off
        return board

    def put(self, key: str, value: Any) -> None:
        """Write a value, whatever was there."""
        self._call(lambda: self._store.set(key, json.dumps(value)))

    def look(self, key: str) -> Any:
        """Return a value, None where there is none (yet)."""
        found = self._call(lambda: self._store.get(key) if self._store.check([key]) else None)
        return None if found is None else json.loads(found)

    def settle(self, key: str, value: Any) -> Any:
        """Write a value unless another was faster; return the one that counts."""
        return json.loads(self._call(lambda: self._store.compare_set(key, "", json.dumps(value))))

    def number(self, key: str) -> int:
        """Return 0, 1, 2, ... to those who ask."""
        return int(self._call(lambda: self._store.add(key, 1))) - 1

    def asked(self, key: str) -> int:
        """Return how many have asked for a number."""
        return int(self._call(lambda: self._store.add(key, 0)))

    def _call(self, act: Callable[[], T]) -> T:
        if self._cut_off is None:
            with _reached():
                return act()
        answer: queue.SimpleQueue[tuple[T | None, RuntimeError | None]] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answer.put((act(), None))
            except RuntimeError as error:
                answer.put((None, error))

        threading.Thread(target=ask, name="unisono-ask", daemon=True).start()
        while True:
            with contextlib.suppress(queue.Empty):
                value, error = answer.get(timeout=_POLL_S)
                with _reached():
                    if error is not None:
                        raise error
                return value  # type: ignore[return-value]
            if why := self._cut_off():
                raise PeerLost(why)


@contextlib.contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # DistNetworkError, DistStoreError and their like
        raise PeerLost(str(error).strip().splitlines()[0]) from error
