"""A dictionary of the program's own that checkpoints hold: saved as it stands, filled in place by a resume."""

from typing import Any, final

import numpy as np
import torch
from torch import Tensor


@final
class KeptDict:
    """Stands for a dictionary among the registered parts.

    Args:
        kept: Of plain values, tensors and arrays, nested as you like.
    """

    def __init__(self, kept: dict[Any, Any]) -> None:
        self.kept = kept

    def state_dict(self) -> dict[Any, Any]:
        """Return the dictionary itself."""
        return self.kept

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        """Make the dictionary equal to `state`; its dictionaries, lists, tensors and arrays stay the same objects."""
        _fill(self.kept, state)


def _fill(kept: dict[Any, Any], state: dict[Any, Any]) -> None:
    values = {key: _filled(kept.get(key), value) for key, value in state.items()}
    kept.clear()  # in the order of the state
    kept.update(values)


def _filled(old: Any, new: Any) -> Any:
    """Return what was there, with the new value in it, where one can be put in; else the new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        _fill(old, new)
    elif isinstance(old, list) and isinstance(new, list):
        old[:] = [_filled(*pair) for pair in zip(old, new, strict=False)] + new[len(old) :]
    elif isinstance(old, Tensor) and isinstance(new, Tensor) and (old.shape, old.dtype) == (new.shape, new.dtype):
        with torch.no_grad():
            old.copy_(new)
    elif (
        isinstance(old, np.ndarray) and isinstance(new, np.ndarray) and (old.shape, old.dtype) == (new.shape, new.dtype)
    ):
        old[...] = new
    else:
        return new.to(old.device) if isinstance(old, Tensor) and isinstance(new, Tensor) else new
    return old
