"""Our own store as a `Store` of torch's: what process groups meet at, open to nobody but the ranks of the run.

Torch's C++ calls these methods from any of its threads; each waits in a socket, without Python's lock.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import final

from torch._C._distributed_c10d import Store
from torch.distributed import DistNetworkError, DistStoreError

from unisono.store.client import Client, StoreLate, StoreLost, StoreRefused, milliseconds


@final
class OwnStore(Store):
    """A store of torch's over a `Client` of ours.

    Torch keeps no reference to the Python half of a store: whoever makes one keeps it as long as the group lives.

    `cut_off` says, while a call waits, why to give up.

    Every call raises `DistNetworkError` where the server is lost or the wait is given up, `DistStoreError` where a key
    does not come in time or a value is not taken.
    """

    def __init__(self, client: Client, timeout: timedelta, cut_off: Callable[[], str] | None = None) -> None:
        super().__init__()
        self.client, self._cut_off = client, cut_off
        self.set_timeout(timeout)

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._ask(b"set", key.encode(), _bytes(value))

    def get(self, key: str) -> bytes:
        """Return a value, waiting for it."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return values, waiting for them."""
        return self._waited(b"get", keys, None)

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Write several values at once."""
        pairs = zip(keys, values, strict=True)
        self._ask(b"set", *(part for key, value in pairs for part in (key.encode(), _bytes(value))))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have values."""
        self._waited(b"wait", keys, timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have values."""
        return bool(int(self._ask(b"check", *(key.encode() for key in keys))[0]))

    def add(self, key: str, amount: int) -> int:
        """Add to a number, and return the sum."""
        return int(self._ask(b"add", key.encode(), b"%d" % amount)[0])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write a value where `expected` stands; return what stands then."""
        return self._ask(b"compare", key.encode(), _bytes(expected), _bytes(desired))[0]

    def append(self, key: str, value: str | bytes) -> None:
        """Write a value behind the one that is there."""
        self._ask(b"append", key.encode(), _bytes(value))

    def has_extended_api(self) -> bool:
        """Whether there are `append`, `multi_get` and `multi_set`."""
        return True

    def clone(self) -> "OwnStore":
        """Return this store: any number of threads may use it at once."""
        return self

    # By these names torch's C++ asks, by the others Python.

    def deleteKey(self, key: str) -> bool:  # noqa: N802
        """Forget a key; whether it was there."""
        return bool(int(self._ask(b"delete", key.encode())[0]))

    def getNumKeys(self) -> int:  # noqa: N802
        """Return how many keys there are."""
        return int(self._ask(b"count")[0])

    delete_key, num_keys = deleteKey, getNumKeys

    def _waited(self, name: bytes, keys: Sequence[str], timeout: timedelta | None) -> list[bytes]:
        own: timedelta = self.timeout  # type: ignore[attr-defined]  # missing in torch's stubs
        seconds = (own if timeout is None else timeout).total_seconds()
        return self._ask(name, milliseconds(seconds), *(key.encode() for key in keys), wait_s=seconds)

    def _ask(self, *question: bytes, wait_s: float = 0.0) -> list[bytes]:
        try:
            return self.client.ask(*question, wait_s=wait_s, cut_off=self._cut_off)
        except StoreLost as error:
            raise DistNetworkError(str(error)) from error
        except (StoreLate, StoreRefused) as error:
            raise DistStoreError(str(error)) from error


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
