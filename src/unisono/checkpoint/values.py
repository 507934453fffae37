"""Nested state as JSON plus tensors, and back: what pickle is elsewhere, without code in it.

JSON's own types stand for themselves. What JSON cannot say is marked: ``{"$tuple": [...]}``, ``{"$dict": pairs}`` (keys
that are no strings), ``{"$counter": pairs}``, ``{"$float": "inf"}`` (or ``-inf``, ``nan``), and ``{"$tensor": key}``,
``{"$array": key}``, ``{"$number": key}`` for tensors, NumPy arrays and NumPy scalars, which are kept beside it; a
tensor that lies in memory in another order than a fresh one also says its ``strides``.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unisono.errors import CheckpointError

_MOST_BITS = 4096
"""Of a whole number: Python reads no longer ones back."""


def to_json(value: Any, where: str, tensors: dict[str, Tensor] | None = None) -> Any:
    """Return `value` in JSON's types, so that `from_json` gives back what it was; containers are new ones.

    What is returned is valid JSON: it holds no NaN and no infinity, but marks in their place.

    Args:
        value: None, bool, int, float, str, list, tuple, dict, tensors, NumPy arrays, nested as you like.
        where: Its place, named in errors and used in the tensors' keys.
        tensors: Gets the tensors found, live, by key; None refuses them.

    Raises:
        CheckpointError: Something in it would need pickle, or cannot be written as JSON; names the place.
    """
    try:
        return _to_json(value, where, tensors)
    except RecursionError:
        raise CheckpointError(f"cannot save {where}: it is nested too deeply, or holds itself.") from None


def _to_json(value: Any, where: str, tensors: dict[str, Tensor] | None) -> Any:
    if isinstance(value, np.generic) and not isinstance(value, float):
        return _keep("$number", np.asarray(value), where, tensors)
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(float(value))}
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise CheckpointError(f"cannot save {where}: a whole number of {value.bit_length()} bits is too long.")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list):
        return [_to_json(item, f"{where}[{index}]", tensors) for index, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": _to_json(list(value), where, tensors)}
    if isinstance(value, dict):
        if _is_plain(value):
            return {key: _to_json(item, f"{where}.{key}", tensors) for key, item in value.items()}
        pairs = value.items()
        items = [[_to_json(key, where, None), _to_json(item, f"{where}[{key!r}]", tensors)] for key, item in pairs]
        return {"$counter" if isinstance(value, Counter) else "$dict": items}
    if isinstance(value, Tensor | np.ndarray):
        return _keep("$tensor" if isinstance(value, Tensor) else "$array", value, where, tensors)
    raise CheckpointError(
        f"cannot save {where}: expected None, bool, int, float, str, list, tuple, dict, tensor or array, "
        f"got {type(value).__name__}."
    )


def from_json(value: Any, tensors: Mapping[str, Tensor] | None = None) -> Any:
    """Return what `to_json` was given; `CheckpointError` where it names a tensor that is not there."""
    if isinstance(value, list):
        return [from_json(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    if kind == "$tuple":
        return tuple(from_json(value[kind], tensors))
    if kind == "$float":
        return float(value[kind])
    if kind in ("$dict", "$counter"):
        pairs = {from_json(key): from_json(item, tensors) for key, item in value[kind]}
        return Counter(pairs) if kind == "$counter" else pairs
    if kind in ("$tensor", "$array", "$number"):
        found = None if tensors is None else tensors.get(value[kind])
        if found is None:
            raise CheckpointError(f"the state names the tensor {value[kind]!r}, which the checkpoint does not hold.")
        if kind == "$tensor":
            return _laid_out(found, value.get("strides"))
        return found.numpy() if kind == "$array" else found.numpy()[()]
    return {key: from_json(item, tensors) for key, item in value.items()}


def few(items: Iterable[str]) -> str:
    """Return the first three of `items` as text, without control characters, and how many more there are."""
    listed = list(items)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return printable(", ".join(listed[:3]) + more) or "none"


def printable(text: str) -> str:
    """Return `text` with every control character but newline and tab replaced: it may come from a stranger's file."""
    return "".join(char if char in "\n\t" or char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _is_plain(value: dict[Any, Any]) -> bool:
    return type(value) is dict and all(isinstance(key, str) and not key.startswith("$") for key in value)


def _keep(kind: str, value: Any, where: str, tensors: dict[str, Tensor] | None) -> dict[str, Any]:
    if tensors is None:
        raise CheckpointError(f"cannot save {where}: expected a plain value, got {type(value).__name__}.")
    try:
        tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value, order="C"))
    except TypeError as error:
        raise CheckpointError(f"cannot save {where}: {error}") from error
    key = where
    while key in tensors:
        key += "'"
    tensors[key] = tensor
    is_usual = kind != "$tensor" or tensor.is_contiguous() or not _is_dense(tensor, strides := list(tensor.stride()))
    return {kind: key} if is_usual else {kind: key, "strides": strides}


def _laid_out(tensor: Tensor, strides: Any) -> Tensor:
    """Return the same values, in the memory order of the tensor that was saved: kernels may depend on it."""
    if strides is None:
        return tensor
    if not _is_dense(tensor, strides):
        raise CheckpointError(f"the state says strides of a tensor that are none of its shape {tuple(tensor.shape)}.")
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


def _is_dense(tensor: Tensor, strides: Any) -> bool:
    """Whether strides visit each place of a tensor of this shape's memory once."""
    if not isinstance(strides, list) or [*map(type, strides)] != [int] * tensor.dim():
        return False
    place = 1
    for stride, size in sorted(pair for pair in zip(strides, tensor.shape, strict=True) if pair[1] != 1):
        if stride != place:
            return False
        place *= size
    return True
