"""How bytes move between ranks, and in which order numbers are added.

`tree` is pure and fixes the order of every sum. `transport` says what carries bytes: `loopback`, `shm/` and
`process_groups/` do. `reduce` joins the two: the owner-computes exchange.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unisono.collectives.execute import all_reduce as all_reduce

__all__ = ["all_reduce"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'unisono.collectives' has no attribute {name!r}")
    return getattr(importlib.import_module("unisono.collectives.execute"), name)
