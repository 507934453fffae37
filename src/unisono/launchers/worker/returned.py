"""What a function that `launch` has started returns: from the worker that ends as rank 0 to who has called `launch`.

In: the value, in the worker. Out: the same, in the calling process, by way of a file in a private directory. Must not
import torch.
"""

import pickle
from pathlib import Path
from typing import Any

from unisono.system.messages import tell

_KEPT, _REFUSED = b"+", b"-"


def keep(folder: str, rank: int, value: object, *, by_value: bool) -> None:
    """Write down what the function has returned; where that cannot be pickled, why.

    Args:
        folder: Of the launch.
        rank: Of this worker; the lowest one's value is taken.
        value: What it has returned.
        by_value: Whether its class may be one that the calling process cannot import: a notebook's.
    """
    if value is None:
        return
    try:
        if by_value:
            import cloudpickle

            content = _KEPT + cloudpickle.dumps(value)
        else:
            content = _KEPT + pickle.dumps(value)
    except Exception as error:  # noqa: BLE001 - whatever the value's own methods raise; `take` says it
        content = _REFUSED + f"a {type(value).__name__}, which cannot be pickled: {error}".encode()
    Path(folder, f"{rank:06}").write_bytes(content)


def take(folder: str, name: str) -> Any:
    """Return what the function `name` has returned; None where it has returned nothing, or left by ``sys.exit``.

    What cannot be pickled is told, and None is returned: the training is over, and most callers ask for nothing.
    """
    import multiprocessing  # noqa: F401 - the starting script is then also __mp_main__, as its classes say in a worker

    found = min(Path(folder).iterdir(), default=None)
    if found is None:
        return None
    content = found.read_bytes()
    why = content[1:].decode() if content[:1] == _REFUSED else ""
    if not why:
        try:
            return pickle.loads(content[1:])  # written by our own worker into our private directory
        except Exception as error:  # noqa: BLE001 - whatever a class raises that this process lacks
            why = f"what this process cannot load: {type(error).__name__}: {error}"
    tell(
        f"{name}() has ended well on every worker; on rank 0 it returned {why.rstrip('.')}: launch() returns None. "
        "Hint: let it return plain values (numbers, texts, tensors, a state_dict()), or nothing."
    )
    return None
