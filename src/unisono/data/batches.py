"""What a batch may be made of: containers keep their type, what knows how to move itself is asked to.

`changed` knows containers and says how to make one anew around other parts; `move` brings tensors to a device.
"""

import copy
import dataclasses
import functools
import inspect
from collections import UserDict, UserList
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from unisono.determinism.devices import carried
from unisono.errors import ConfigError

T = TypeVar("T")
_FIXED = (bool, int, float, complex, str, bytes, type(None), np.generic)
Change = Callable[[Any], Any]


class XY(NamedTuple):
    """A micro-batch of inputs and targets; anything else a collate function returns is passed on as it is."""

    x: Any
    y: Any


_TYPES: dict[type, Callable[[Any, Change], Any]] = {}


def register_batch_type(kind: type[T], rebuild: Callable[[T, Change], T]) -> type[T]:
    """Say what a type of batch is made of, where it is no container that is known and has no ``to(device)`` of its own.

    Dictionaries, lists, tuples, named tuples, dataclasses and types derived from them need no registration.

    Args:
        kind: The type; those derived from it are meant too.
        rebuild: Gets a batch and a function; returns another batch of its type, in which each part is what the
            function returns for it. The batch that it gets stays as it is.

    Returns:
        `kind`.

    Raises:
        ConfigError: `kind` is no type, or a tensor's.

    Example:
        >>> class Pair:
        ...     def __init__(self, a, b):
        ...         self.a, self.b = a, b
        >>> _ = register_batch_type(Pair, lambda pair, change: Pair(change(pair.a), change(pair.b)))
    """
    if not isinstance(kind, type) or issubclass(kind, Tensor):
        raise ConfigError(f"expected a type of batches that is no tensor's, got {kind!r}.")
    _TYPES[kind] = rebuild
    _rebuild_of.cache_clear()
    _own_way.cache_clear()
    return kind


def changed(data: Any, change: Change) -> Any:
    """Return `data` with each part of the outermost container replaced by what `change` returns for it.

    What is no container comes back as it is.
    """
    kind: Any = type(data)
    rebuild = _rebuild_of(kind)
    return data if rebuild is None else rebuild(data, change)


def change_tensors(data: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return `data` with every tensor in it replaced by what `change` returns for it."""
    return change(data) if isinstance(data, Tensor) else changed(data, functools.partial(change_tensors, change=change))


def duplicated(data: Any) -> tuple[Any, bool]:
    """Return a copy that shares no container, tensor or array; and whether all of it could be copied."""
    if isinstance(data, Tensor):
        return data.clone(), True
    if isinstance(data, np.ndarray):
        return data.copy(), True
    copied: list[bool] = []

    def change(part: Any) -> Any:
        new, is_whole = duplicated(part)
        copied.append(is_whole)
        return new

    new = changed(data, change)
    return new, all(copied) and (new is not data or isinstance(data, _FIXED))


def move(data: Any, device: torch.device) -> Any:
    """Return `data` with every tensor in it on `device`; an object with a ``to(device)`` of its own is moved by it."""
    if isinstance(data, Tensor):
        if (data.is_cpu and device.type == "cpu") or data.device == device:
            return data
        is_plain = type(data) is Tensor and data.is_cpu and data.layout is torch.strided and not data.requires_grad
        return carried(data, device) if is_plain else data.to(device, non_blocking=True)
    kind: Any = type(data)
    if kind is XY:
        x, y = data
        if type(x) is type(y) is Tensor and device.type == "cpu" and x.is_cpu and y.is_cpu:  # as nearly always there
            return data
        x, y = move(x, device), move(y, device)
        return data if x is data.x and y is data.y else XY(x, y)
    if (how := _own_way(kind)) is not None:
        moved = data.to(device, **how)
        return data if moved is None else moved  # some move themselves
    return changed(data, lambda part: move(part, device))


@functools.lru_cache(maxsize=256)
def _own_way(kind: type) -> dict[str, Any] | None:
    """Return how the ``to`` of a type is called; None where it has none, or has been registered."""
    own = getattr(kind, "to", None)
    if not callable(own) or any(base in _TYPES for base in kind.__mro__):
        return None
    try:
        parameters = inspect.signature(own).parameters.values()
    except (TypeError, ValueError):  # not written in Python
        return {}
    takes = any(each.name == "non_blocking" or each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    return {"non_blocking": True} if takes else {}


@functools.lru_cache(maxsize=256)
def _rebuild_of(kind: type) -> Callable[[Any, Change], Any] | None:
    """Return what makes a container of a type anew; None for what is none."""
    registered = next((_TYPES[base] for base in kind.__mro__ if base in _TYPES), None)
    if registered is not None:
        return registered
    if kind in (dict, list, tuple):
        return _PLAIN[kind]
    if issubclass(kind, PackedSequence):
        return _packed
    if issubclass(kind, tuple):
        return (lambda data, change: kind._make(map(change, data))) if hasattr(kind, "_make") else _tuple
    if issubclass(kind, MutableMapping):
        return _mapping
    if issubclass(kind, list | UserList):
        return _list
    if issubclass(kind, Mapping):
        return lambda data, change: kind({key: change(value) for key, value in data.items()})  # type: ignore[call-arg]
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        return lambda data, change: _with(data, names, change)
    return (lambda data, change: _with(data, vars(data), change)) if issubclass(kind, SimpleNamespace) else None


_PLAIN: dict[type, Callable[[Any, Change], Any]] = {
    dict: lambda data, change: {key: change(value) for key, value in data.items()},
    list: lambda data, change: [change(item) for item in data],
    tuple: lambda data, change: tuple([change(item) for item in data]),
}


def _tuple(data: Any, change: Change) -> Any:
    return type(data)([change(item) for item in data])


def _packed(data: Any, change: Change) -> Any:
    return data._replace(data=change(data.data))  # the rest are lengths and orders


def _mapping(data: Any, change: Change) -> Any:
    """Make a mapping anew: a copy, with its factory, order and attributes, of which every value is replaced."""
    new = copy.copy(data)
    if isinstance(data, UserDict):
        new.data = dict(data.data)  # what derived types may share with the copy
    for key in list(new):
        new[key] = change(new[key])
    return new


def _list(data: Any, change: Change) -> Any:
    new = copy.copy(data)
    new[:] = [change(item) for item in data]
    return new


def _with(data: Any, names: Iterable[str], change: Change) -> Any:
    new = copy.copy(data)
    for name in [*names]:
        if hasattr(data, name):
            object.__setattr__(new, name, change(getattr(data, name)))  # frozen ones too
    return new


_COUNTING = (torch.int64, torch.int32, torch.uint8)


def described(batch: Any) -> str:
    """Return dtype and shape of each tensor of a batch, by name; the range of whole numbers, where they lie here."""
    if isinstance(batch, Tensor):
        kind = str(batch.dtype).removeprefix("torch.")
        is_plain = batch.device.type == "cpu" and batch.layout is torch.strided and not batch.is_nested
        span = ""
        if is_plain and batch.dtype in _COUNTING and batch.numel():
            span = f" from {batch.min().item()} to {batch.max().item()}"
        return f"{kind} {tuple(batch.shape)}{span}"
    names = batch if isinstance(batch, dict) else getattr(batch, "_fields", ()) if isinstance(batch, tuple) else ()
    values = batch.values() if isinstance(batch, dict) else batch if names else ()
    found = ((name, described(value)) for name, value in zip(names, values, strict=False))
    return ", ".join(f"{name} {shown}" for name, shown in found if shown)


def uncollated(error: Exception, numbers: list[int], *, is_own: bool) -> str:
    """Return a note on an error of a function that has put samples together: the program's own, or torch's."""
    hint = ""
    if not is_own:
        hint = (
            " Hint: a sample is made of tensors, arrays and numbers of one shape each: run.loader(..., transform=...) "
        )
        hint += "makes them so" if isinstance(error, TypeError) else "does it, collate= pads where shapes differ"
    return f"while putting samples {numbers[:9]} together.{hint}"
