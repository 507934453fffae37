"""Load modules without looking for garbage meanwhile.

What is loaded stays. Torch is half a million objects: going through all of them takes 0.1 s, and happens once or twice
while something is loaded that has nothing to do with them.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """Hold the cyclic garbage collector still while the block runs; one that the program has stopped stays so."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
