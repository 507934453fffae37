"""Whether data is the same for everybody: the first samples of a run, each fetched twice, as hashes.

In: a loader. Out: hashes that ranks compare, and a run directory keeps. Where loader processes fetch, one of them looks
and never the rank: what a data set opens there would be shared by all that are forked later.
"""

import dataclasses
import random
import time
from collections import UserDict, UserList
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any, NoReturn, cast, final

import numpy as np
import torch
from torch import Tensor

from unisono.collectives.placement import parts_of
from unisono.data.loader import Collate, Fetcher, Loader, Task, fetch_all
from unisono.errors import DataError
from unisono.system.messages import warn

_MOST = 4
_ENOUGH_S = 0.1  # after so long, no further sample is looked at
_PLAIN = bool | int | float | complex | bytes | None
_LONGEST_PATH = 4096
_DRAW = (
    "draw what is random in it from torch's, Python's or NumPy's own generators (torch.rand, random.random, "
    "numpy.random.rand), which are keyed by sample, not from one of its own; copy a stored array before it is changed. "
    "More causes: docs/data.md, 'The same data for all'"
)

EQUAL_DATA = (
    "run.loader() gets all of the data on every rank, and hands each rank its part: make it of nothing that depends on "
    "the rank, on an unseeded generator or on the order of a directory or set "
    "(random_split(..., generator=torch.Generator().manual_seed(0)), numpy.random.default_rng(0), sorted(os.listdir()))"
)

_DRAWN = "what the generators are left as"

Parts = dict[str, str]


def first_samples(loader: Loader) -> dict[str, str]:
    """Return hashes of the first samples of step 1, by their numbers, which are the same for all ranks and launches.

    Of samples that take long to fetch, fewer. Data sets of unisono's own that are named by their content, without
    transform or collate function, have none: there is nothing in them that could differ. The generators are left as
    they were.

    Raises:
        DataError: A sample is another one when it is fetched again.
    """
    fetcher = loader.fetcher
    if _is_known(fetcher):
        return {}
    sampler = loader.sampler
    epoch, batch = sampler.epoch_with_batch(1)
    epochs, part = sampler.epochs(1), parts_of(len(batch), sampler.replicas)[0]
    task = Task(epoch if epochs is None else epochs, batch)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        looked = fetch_all(cast(Any, _Looker(fetcher, len(part))), [task], num_workers=min(1, loader._num_workers))
        [found] = [*looked]
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
    is_told = False
    for name, first, again in found:
        is_kept = first.pop(_DRAWN) != again.pop(_DRAWN)
        if first == again and is_kept and not is_told:
            is_told = True
            warn(
                f"{name} of {type(fetcher.dataset).__name__} has drawn other random numbers when it was fetched first "
                "than when it was fetched again, and yet is the same: it seems to keep what it has drawn, which then "
                "depends on who fetches it first. Hint: keep what is not random, and draw at each fetch."
            )
        if first != again:
            _refuse(name, type(fetcher.dataset).__name__, first, again)
    return {name: _hash("", *(f"{where} {value}" for where, value in first.items())) for name, first, _ in found}


def parts_of_sample(sample: Any) -> Parts:
    """Return a hash of each part of a sample, by where it is: ``[0]``, ``['image']``.

    Of types that are neither containers, tensors, arrays, images nor plain values the type alone counts, and of
    absolute paths the last name: they may differ by host.
    """
    return dict(_parts(sample, ""))


def _parts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Tensor):
        yield where, _tensor(value)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield where, _hash(f"array {value.dtype} {value.shape}", np.ascontiguousarray(value).tobytes())
    elif isinstance(value, str):
        is_path = value.startswith("/") and "\n" not in value and len(value) < _LONGEST_PATH
        yield where, _hash("str", value.rpartition("/")[2] if is_path else value)
    elif isinstance(value, _PLAIN):
        yield where, _hash(type(value).__name__, repr(value))
    elif isinstance(value, set | frozenset):
        yield where, _hash("set", *sorted(_hash("", *parts_of_sample(each).values()) for each in value))
    else:
        yield from _of_container(value, where)


def _of_container(value: Any, where: str) -> Iterator[tuple[str, str]]:
    yield f"{where}.type", type(value).__qualname__
    inner = _inner(value)
    for name, part in inner or ():
        yield from _parts(part, f"{where}[{name}]")
    if inner is None and callable(getattr(value, "tobytes", None)):  # an image of Pillow's, a number of NumPy's
        about = f"{getattr(value, 'mode', '')} {getattr(value, 'size', '')}"
        yield where, _hash(about, value.tobytes())


def _inner(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return what a container holds, by name; None for what is none, or knows better than we how to go through it."""
    if isinstance(value, dict | UserDict):
        return [(repr(name), part) for name, part in value.items()]
    if isinstance(value, list | tuple | UserList):
        return enumerate(value)
    if isinstance(value, np.ndarray):  # of objects
        return enumerate(value.ravel().tolist())
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return vars(value).items() if isinstance(value, SimpleNamespace) else None


def _tensor(tensor: Tensor) -> str:
    about = f"tensor {tensor.dtype} {tuple(tensor.shape) if not tensor.is_nested else ''}"
    plain = tensor.detach()
    if plain.is_nested:
        return _hash(about, *map(_tensor, plain.unbind()))
    if plain.is_quantized:
        plain = plain.int_repr()
    dense = (plain if plain.layout is torch.strided else plain.to_dense()).cpu().resolve_conj().resolve_neg()
    return _hash(about, dense.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _hash(about: str, *content: Any) -> str:
    digest = blake2b(about.encode(), digest_size=8)
    for each in content:
        digest.update(each.encode("utf-8", "surrogatepass") if isinstance(each, str) else each)
    return digest.hexdigest()


def _is_known(fetcher: Fetcher) -> bool:
    """Whether all that a fetcher yields is named by a content hash and computed by our own code."""
    dataset = fetcher.dataset
    is_ours = type(dataset).__module__.partition(".")[0] == "unisono"
    is_plain = fetcher._transform is None and fetcher._collate is None
    return is_ours and is_plain and isinstance(getattr(dataset, "fingerprint", None), str | dict)


def _refuse(name: str, kind: str, first: Parts, again: Parts) -> NoReturn:
    where = next(part for part in {**first, **again} if first.get(part) != again.get(part))
    raise DataError(
        f"{name} of {kind} is another one when it is fetched again{where and f', in its part {where}'}: the result "
        f"would depend on how often each process has fetched, and so on the number of workers. Hint: {_DRAW}."
    )


@final
class _Looker:
    """Fetches samples of a batch twice, forwards and backwards, wherever a `Fetcher` would fetch them.

    Args:
        fetcher: What is used in training.
        size: Samples of the first micro-batch.
    """

    def __init__(self, fetcher: Fetcher, size: int) -> None:
        self._fetcher, self._size = fetcher, size
        self._is_whole = fetcher._is_keyed or fetcher._is_batched
        singles = Fetcher(fetcher.dataset, fetcher.seed, transform=fetcher._transform, collate=list)
        self._singles = fetcher if self._is_whole else singles

    def __len__(self) -> int:
        return len(self._fetcher)

    def check_workers(self, num_workers: int) -> None:
        self._fetcher.check_workers(num_workers)

    def __getitem__(self, task: Task) -> list[tuple[str, Parts, Parts]]:
        return self.fetch(task, list)

    def fetch(self, task: Task, _default: Collate) -> list[tuple[str, Parts, Parts]]:
        """Return of each its name, and its parts' hashes as fetched first and as fetched again."""
        seen: list[tuple[str, Fetcher, Task, Parts]] = []
        began, taken = time.perf_counter(), 0.0
        for each in [_cut(task, 0, _MOST)] if self._is_whole else [_cut(task, at, at + 1) for at in range(_MOST)]:
            if len(each.indices) and taken < _ENOUGH_S:
                name = " ".join(["sample", *map(str, each.indices.tolist())])
                seen.append((name, self._singles, each, self._look(self._singles, each)))
                taken = time.perf_counter() - began
        if self._fetcher._collate is not None and taken / len(seen) * self._size < _ENOUGH_S:
            each = _cut(task, 0, self._size)
            seen.append(("the first micro-batch", self._fetcher, each, self._look(self._fetcher, each)))
        again = [self._look(fetcher, each) for _, fetcher, each, _ in reversed(seen)]
        return [(name, first, other) for (name, _, _, first), other in zip(seen, reversed(again), strict=True)]

    def _look(self, fetcher: Fetcher, task: Task) -> Parts:
        fetched = fetcher.fetch(task, list)
        drawn = _hash(repr((random.getstate(), np.random.get_state())), torch.get_rng_state().numpy().tobytes())
        return parts_of_sample(fetched if fetcher is self._fetcher else fetched[0]) | {_DRAWN: drawn}


def _cut(task: Task, start: int, stop: int) -> Task:
    epoch = task.epoch if isinstance(task.epoch, int) else task.epoch[start:stop]
    return Task(epoch, task.indices[start:stop])
