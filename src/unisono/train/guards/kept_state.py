"""What a loss function keeps from call to call, outside of parameters and of the prepared model's buffers.

In: a loss function and a model. Out: marks of all that can be reached from them through variables, attributes and
containers: numbers, texts, tensors, arrays, generators. Nothing is called, and no tensor is read. Of large containers
only the ends are looked at, and after `_MOST` places no more are.
"""

import argparse
import functools
import itertools
import random
import sys
import sysconfig
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unisono.determinism.switches import checksum

Put = Callable[[Any], None]
_MOST, _DEEPEST, _ENDS, _LARGE = 20_000, 12, 32, 1 << 16
_MOST_TOLD, _LONGEST_TOLD = 2_000, 60
_HOLDER = "the holder "
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OURS = f"{Path(__file__).parents[2]}/"
_LIBRARIES = (f"{Path(torch.__file__).parent}/", sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"])
_CALLED = (MethodType, functools.partial, functools._lru_cache_wrapper, GeneratorType)
_CONTAINERS = (list, tuple, deque, set, dict, OrderedDict, defaultdict)
_NAMESPACES = (SimpleNamespace, argparse.Namespace)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GRADIENT_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
OF_TORCH = frozenset(vars(nn.Module()))
_OF_TORCH = OF_TORCH - {"training"}
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_KEYED = (random._inst, np.random.mtrand._rand, torch.default_generator)
"""The generators that a run puts into a state before each replica."""


@final
class KeptState:
    """What a loss function and a model keep now.

    Args:
        function: The loss function; looked at first, so that places have its own names.
        model: The prepared one, whose buffers are left out.

    Attributes:
        tensors: By place.
        generators: Their places.
        modules: By place.
        holders: Objects of the program's own classes, dictionaries and lists, by place; but for what modules hold.
        codes: Of the functions, each with whether it was found in a class.
    """

    def __init__(self, function: Any, model: nn.Module) -> None:
        self._marks: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._puts: list[tuple[str, Put, Any]] = []
        self._tensor_puts: list[tuple[Put, Tensor]] = []
        self.tensors: dict[str, Tensor] = {}
        self.generators: list[str] = []
        self.holders: dict[str, Any] = {}
        self.modules: dict[str, nn.Module] = {}
        self.codes: list[tuple[CodeType, bool]] = []
        self._modules = 0  # around what is looked at
        self._containers: list[tuple[Any, Any]] = []
        self._seen: dict[int, Any] = {id(each): each for each in _KEYED}  # held, so that no other gets its id
        self._own = {id(module) for module in model.modules()}
        self._walk("", function, None, 0)
        self._walk("model", model, None, 0)

    def changed(self, before: "KeptState") -> list[str]:
        """Return the places that are not as they were."""
        missing = object()
        names = [name for name, mark in self._marks.items() if before._marks.get(name, missing) != mark]
        return [*names, *(name for name in before._marks if name not in self._marks)]

    def told(self, changing: set[str]) -> dict[str, str]:
        """Return values as texts, but for what is `changing`, by place: where need be their kind, a colon, a hash."""
        found: dict[str, str] = {}
        for name, mark in itertools.islice(self._marks.items(), _MOST_TOLD):
            if name in changing or not name:
                continue
            if name in self.tensors:
                text = f"a tensor: {checksum([self.tensors[name]])}"
            elif name in self.generators:
                text = f"a generator of its own: {mark}"
            else:
                text = repr(mark[1]) if isinstance(mark, tuple) else str(mark)
            found[name] = text if len(text) <= _LONGEST_TOLD else f"a long value: {_hash(text.encode())}"
        return found

    def values(self, names: list[str]) -> dict[str, Tensor]:
        """Return copies of the tensors among some places."""
        return {name: self.tensors[name].detach().clone() for name in names if name in self.tensors}

    def put_back(self, values: dict[str, Tensor], *, replaces: bool = False) -> None:
        """Put numbers and containers back as they were, and into tensors their `values`.

        A tensor that another one has taken the place of comes back only if this `replaces`: else the new one stays,
        since the graph of the newest loss may hold it.
        """
        for _, put, value in self._puts:
            put(value)
        for place, tensor in self._tensor_puts if replaces else ():
            place(tensor)
        for container, items in self._containers:
            if isinstance(container, dict):
                for key in [key for key in container if key not in items]:
                    del container[key]
            elif isinstance(container, list):
                del container[len(items) :]
            elif container != items:
                container.clear()
                (container.update if isinstance(container, set) else container.extend)(items)
        with torch.no_grad():
            for name, value in values.items():
                if not torch.equal(self.tensors[name], value):  # what a graph holds is not written to
                    self.tensors[name].copy_(value)

    def _place(self, name: str) -> str:
        """Return a place for a mark: its name, with a number where another variable of that name has one already."""
        self._counts[name] = count = self._counts.get(name, 0) + 1
        return name if count == 1 else f"{name} ({count})"

    def _walk(self, name: str, value: Any, put: Put | None, depth: int) -> None:
        if isinstance(value, _PLAIN):
            name = self._place(name)
            self._marks[name] = repr(value) if isinstance(value, float | complex) else (type(value), value)
            if put is not None:
                self._puts.append((name, put, value))
            return
        if id(value) in self._seen or depth > _DEEPEST or len(self._seen) > _MOST:
            return
        self._seen[id(value)] = value
        if (mark := _mark(value)) is not None:
            self._marks[name := self._place(name)] = mark
            if isinstance(value, Tensor):
                self.tensors[name] = value
                if put is not None:
                    self._tensor_puts.append((put, value))
            elif isinstance(value, _GENERATORS):
                self.generators.append(name)
            return
        is_module = isinstance(value, nn.Module)
        self._modules += is_module
        for below, each, putter in self._parts(name, value):
            self._walk(below, each, putter, depth + 1)
        self._modules -= is_module

    def _parts(self, name: str, value: Any) -> Iterator[tuple[str, Any, Put | None]]:
        """Yield what an object holds: its name, itself, and how to put another one there."""
        if isinstance(value, FunctionType):
            inside = value.__qualname__.rpartition(".")[0]
            self.codes.append((value.__code__, bool(inside) and not inside.endswith("<locals>")))
            yield from _of_function(value)
        elif isinstance(value, _CALLED):
            yield from self._of_callable(name, value)
        elif type(value) in _CONTAINERS:
            yield from self._of_container(name, value)
        elif isinstance(value, nn.Module):
            yield from self._of_module(name, value)
        elif isinstance(value, type):
            if not _is_library(value):
                yield from _of_class(value)
                yield from ((name, base, None) for base in value.__bases__)
        elif type(value) in _NAMESPACES or not (isinstance(value, ModuleType) or _is_library(type(value))):
            self._hold(name, value)
            yield from _of_attributes(name, value)
            yield name, type(value), None

    def _hold(self, name: str, value: Any) -> None:
        if not self._modules:
            self.holders[self._place(f"{_HOLDER}{name}").removeprefix(_HOLDER)] = value

    def _of_callable(self, name: str, value: Any) -> Iterator[tuple[str, Any, Put | None]]:
        if isinstance(value, MethodType):
            yield name or "self", value.__self__, None
            if isinstance(value.__func__, FunctionType):
                self.codes.append((value.__func__.__code__, False))
            yield name, value.__func__, None
        elif isinstance(value, functools.partial):
            yield from ((name, each, None) for each in (value.func, *value.args, *value.keywords.values()))
        elif isinstance(value, functools._lru_cache_wrapper):
            self._marks[self._place(f"{value.__name__}() (functools.cache)")] = value.cache_info().currsize
            yield name, value.__wrapped__, None
        elif value.gi_frame is not None:
            self._marks[self._place(name)] = value.gi_frame.f_lasti
            yield from ((f"{name}.{key}", each, None) for key, each in value.gi_frame.f_locals.items())

    def _of_container(self, name: str, value: Any) -> Iterator[tuple[str, Any, Put | None]]:
        self._marks[self._place(name)] = ("items", len(value))
        if isinstance(value, dict | list | deque):
            self._hold(name, value)
        if isinstance(value, set):
            self._containers.append((value, {*value}))
        elif isinstance(value, dict):
            self._containers.append((value, dict(value)))
            for key in _ends([*value]):
                yield f"{name}[{key!r:.40}]", value[key], functools.partial(value.__setitem__, key)
        else:
            items = [*value]
            if not isinstance(value, tuple):
                self._containers.append((value, value.copy()))
            for place in _ends(range(len(items))):
                put = None if isinstance(value, tuple) else functools.partial(_put_item, value, place)
                yield f"{name}[{place}]", items[place], put

    def _of_module(self, name: str, module: nn.Module) -> Iterator[tuple[str, Any, Put | None]]:
        dot = f"{name}." if name else ""
        self.modules[name] = module
        yield from _of_attributes(name, module, _OF_TORCH)
        tensors: dict[str, Tensor | None] = {**module._parameters}
        if id(module) not in self._own:
            tensors.update(module._buffers)
        yield from ((f"{dot}{key}", each, None) for key, each in tensors.items() if each is not None)
        yield from ((f"{dot}{key}", each, None) for key, each in module._modules.items())
        yield from ((name, each, None) for hooks in _HOOKS for each in vars(module)[hooks].values())
        for key, parameter in module._parameters.items():
            yield from ((f"{dot}{key}", each, None) for each in _gradient_hooks(parameter))
        if not _is_library(type(module)):
            yield name, type(module), None


def _mark(value: Any) -> Any:
    """Return what tells one state of a tensor, an array or a generator from another; None for anything else."""
    if isinstance(value, Tensor):
        return id(value), None if is_lazy(value) or value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        numbers = value.ravel()[:: max(1, value.size // _LARGE)]
        return value.shape, None if value.dtype == object else _hash(numbers.tobytes())
    if isinstance(value, random.Random):
        return "system" if isinstance(value, random.SystemRandom) else _hash(repr(value.getstate()).encode())
    if isinstance(value, np.random.Generator):
        return _hash(repr(value.bit_generator.state).encode())
    if isinstance(value, np.random.RandomState):
        return _hash(repr(value.get_state(legacy=False)).encode())
    if isinstance(value, torch.Generator):
        return _hash(value.get_state().numpy().tobytes())
    return repr(value) if isinstance(value, itertools.count) else None


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any, Put | None]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # nothing is in it yet
            continue
        yield name, value, functools.partial(setattr, cell, "cell_contents")
    named = zip(reversed(code.co_varnames[: code.co_argcount]), reversed(function.__defaults__ or ()), strict=False)
    yield from ((name, each, None) for name, each in (*named, *(function.__kwdefaults__ or {}).items()))
    if not _is_library_file(code.co_filename):
        yield from _of_attributes(code.co_name, function)
        known = function.__globals__
        for name in dict.fromkeys(_names(code)):
            if name in known:
                yield name, known[name], functools.partial(known.__setitem__, name)


def _gradient_hooks(parameter: Tensor | None) -> Iterator[Any]:
    """Yield the program's hooks of a parameter's gradient, not those of a strategy."""
    for kind in _GRADIENT_HOOKS:
        for each in (getattr(parameter, kind, None) or {}).values():
            code = getattr(each, "__code__", None)
            if code is None or not code.co_filename.startswith(_OURS):
                yield each


def _of_class(kind: type) -> Iterator[tuple[str, Any, Put | None]]:
    for name, value in [*vars(kind).items()]:
        if isinstance(value, FunctionType | staticmethod | classmethod):
            yield f"{kind.__name__}.{name}", getattr(value, "__func__", value), None
        elif isinstance(value, property):
            yield f"{kind.__name__}.{name}", value.fget, None
        elif not name.startswith("__"):
            yield f"{kind.__name__}.{name}", value, functools.partial(setattr, kind, name)


def _of_attributes(
    name: str, value: Any, others: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Any, Put | None]]:
    held: dict[str, Any] = getattr(value, "__dict__", {})
    for key, each in [*held.items()]:
        if key not in others:
            yield f"{name}.{key}" if name else key, each, functools.partial(held.__setitem__, key)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _ends(items: Any) -> list[Any]:
    return [*items] if len(items) <= 2 * _ENDS else [*items[:_ENDS], *items[-_ENDS:]]


def _put_item(items: Any, place: int, value: Any) -> None:
    if place < len(items):
        items[place] = value


def _is_library(kind: type) -> bool:
    """Whether a class is torch's, another library's, Python's or ours."""
    top = kind.__module__.partition(".")[0]
    return top in ("torch", "numpy", "unisono", "builtins") or _is_library_module(kind.__module__)


@functools.cache
def _is_library_module(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return name != "__main__" and (file is None or _is_library_file(file)) and name in sys.modules


def _is_library_file(file: str) -> bool:
    return file.startswith((_OURS, *_LIBRARIES, "<frozen"))
