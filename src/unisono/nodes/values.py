"""Plain values in the store: how launchers tell each other something. JSON, never a pickle."""

import json
from collections.abc import Callable
from typing import Any, final

from unisono.errors import PeerLost
from unisono.store.client import Client, StoreLate, StoreLost, StoreRefused, milliseconds


@final
class SharedValues:
    """JSON values under the keys of a store; only `look` may wait for one. `cut_off` says, while a call waits for the
    network, why to give up.

    Every call may raise `PeerLost`: the store cannot be reached any more.
    """

    def __init__(self, client: Client, prefix: str, cut_off: Callable[[], str] | None = None) -> None:
        self._client, self._prefix, self._cut_off = client, prefix, cut_off

    def guarded(self, cut_off: Callable[[], str] | None) -> "SharedValues":
        """Return the same board, whose calls give up when `cut_off` says why; None: never."""
        return SharedValues(self._client, self._prefix, cut_off)

    def below(self, name: str) -> "SharedValues":
        """Return a board whose keys are apart from those of this one."""
        return SharedValues(self._client, f"{self._prefix}/{name}", self._cut_off)

    def put(self, key: str, value: Any) -> None:
        """Write a value, whatever was there."""
        self._ask(b"set", self._name(key), json.dumps(value).encode())

    def look(self, key: str, wait_s: float = 0.0) -> Any:
        """Return a value, None where there is none (yet); may wait for it."""
        try:
            return json.loads(self._ask(b"get", milliseconds(wait_s), self._name(key), wait_s=wait_s)[0])
        except StoreLate:
            return None

    def forget(self, key: str) -> None:
        """Forget a value, if there is one."""
        self._ask(b"delete", self._name(key))

    def settle(self, key: str, value: Any) -> Any:
        """Write a value unless another was faster; return the one that counts."""
        return json.loads(self._ask(b"compare", self._name(key), b"", json.dumps(value).encode())[0])

    def number(self, key: str) -> int:
        """Return 0, 1, 2, ... to those who ask."""
        return int(self._ask(b"add", self._name(key), b"1")[0]) - 1

    def asked(self, key: str) -> int:
        """Return how many have asked for a number."""
        return int(self._ask(b"add", self._name(key), b"0")[0])

    def clear(self) -> None:
        """Forget all values of this board and of those below it."""
        self._ask(b"drop", self._name(""))

    def _name(self, key: str) -> bytes:
        return f"{self._prefix}/{key}".encode()

    def _ask(self, *question: bytes, wait_s: float = 0.0) -> list[bytes]:
        try:
            return self._client.ask(*question, wait_s=wait_s, cut_off=self._cut_off)
        except (StoreLost, StoreRefused) as error:
            raise PeerLost(str(error)) from error
