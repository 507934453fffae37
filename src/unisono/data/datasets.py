"""What a data set may offer beside samples by number: whole micro-batches, and lengths; and arrays as a data set."""

import functools
import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from unisono.data.sampler import Indices
from unisono.errors import ConfigError, DataError

_HASHED_WHOLE_BYTES = 1 << 30
_HASHED_BLOCK_BYTES = 1 << 24


class Samples(Protocol):
    """Samples by number: a list, arrays, a data set of PyTorch or Hugging Face that has a length."""

    def __len__(self) -> int:
        """Return how many samples there are."""

    def __getitem__(self, index: int, /) -> Any:
        """Return one sample."""


MapStyle = Samples | TorchDataset[Any]  # PyTorch's class declares no length; the objects have one


def part_of(index: int, ends: Indices) -> tuple[int, int]:
    """Return in which of several parts, each with the place where it ends, a sample lies, and its place in there.

    Raises:
        IndexError: There is no such sample; -1 is the last one.
    """
    length = int(ends[-1])
    number = index + length if index < 0 else index
    if not 0 <= number < length:
        raise IndexError(f"sample {index} of {length}")
    part = int(ends.searchsorted(number, side="right"))
    return part, number - (int(ends[part - 1]) if part else 0)


@runtime_checkable
class BatchedDataset(Protocol):
    """A data set that can hand out a collated micro-batch at once, without randomness."""

    def fetch_micro_batch(self, indices: Indices) -> Any:
        """Return the samples at `indices`, collated into fresh contiguous tensors."""


@runtime_checkable
class KeyedDataset(Protocol):
    """A data set that can hand out a randomly changed micro-batch at once.

    ``is_keyed_singly``, where it has that, says whether single samples are as random, by torch's generator: without it
    no mixture takes it, and where it is False no loader with a transform or collate function.
    """

    def fetch_keyed(self, indices: Indices, *, seed: int, epoch: int) -> Any:
        """Return the samples at `indices`, collated; what is random in a sample is keyed by (seed, epoch, index)."""


@runtime_checkable
class HasLengths(Protocol):
    """A data set whose samples cost differently much, and that says how its batches are made of them."""

    length_pool: int

    def lengths(self) -> Indices:
        """Return the cost of each sample, int64 (n,)."""


def content_hash(arrays: Iterable[Tensor]) -> str:
    """Return a hash of dtypes, shapes and bytes; of an array over 1 GiB, of every k-th row."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {tuple(array.shape)}\n".encode())
        rows = array[:: 1 + array.nbytes // _HASHED_WHOLE_BYTES]
        for block in rows.split(max(1, _HASHED_BLOCK_BYTES * len(array) // max(1, array.nbytes))):
            digest.update(block.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def fetch_each_keyed(dataset: KeyedDataset, indices: Indices, epochs: Indices, seed: int) -> Any:
    """Return what `fetch_keyed` gives for samples that are each in an epoch of their own."""
    each = zip(indices.reshape(-1, 1), epochs.tolist(), strict=True)
    return _joined([dataset.fetch_keyed(one, seed=seed, epoch=epoch) for one, epoch in each])


def told_epochs(dataset: Any, epochs: Iterable[int]) -> Iterator[int]:
    """Yield the epoch of each sample; before, a data set with ``set_epoch`` is told it, 0 in evaluations (-1).

    In the process that fetches, whichever it is: what the loop sets would not reach the others.
    """
    told = None
    for epoch in epochs:
        if epoch != told and hasattr(dataset, "set_epoch"):
            dataset.set_epoch(max(epoch, 0))
        told = epoch
        yield epoch


def _joined(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(_joined, map(list, zip(*parts, strict=True))))
    if isinstance(first, tuple | list):
        return type(first)(map(_joined, map(list, zip(*parts, strict=True))))
    raise ConfigError(
        f"expected tensors from fetch_keyed, got {type(first).__name__}, of which several samples cannot be made one "
        "micro-batch. Hint: for this plan, a data set with __getitem__ alone."
    )


def refuse_bare_arrays(dataset: Any) -> None:
    """Refuse (`ConfigError`) arrays of inputs and targets that are a tuple, or have names, in place of a data set."""
    by_name = isinstance(dataset, Mapping) and all(isinstance(name, str) for name in dataset)
    arrays = list(dataset.values()) if by_name else dataset
    if not by_name and not (isinstance(dataset, tuple) and len(dataset) in (2, 3)):  # more of them are samples
        return
    if not all(getattr(each, "ndim", 0) > 0 for each in arrays) or len(lengths := set(map(len, arrays))) != 1:
        return
    if by_name or max(lengths) > len(arrays):
        raise ConfigError(
            f"expected a data set, got a {type(dataset).__name__} of {len(arrays)} arrays. "
            "Hint: unisono.ArrayDataset(inputs, targets) makes them one: sample i is row i of each."
        )


@final
class ArrayDataset:
    """Samples in arrays of equal length: NumPy arrays (memory-mapped ones too) or tensors.

    Args:
        arrays: One per field; sample i is the i-th row of each.

    Raises:
        DataError: No array, or arrays of different lengths.
    """

    def __init__(self, *arrays: Any) -> None:
        others = [each for each in arrays if isinstance(each, str | Path) or not hasattr(each, "__len__")]
        for other in others:
            raise DataError(
                f"expected arrays, got {other!r:.60} ({type(other).__name__}). "
                "Hint: numpy.load(path, mmap_mode='r') reads an .npy file."
            )
        only = arrays[0] if len(arrays) == 1 else None
        if isinstance(only, tuple | list) and len({tuple(getattr(each, "shape", "?")) for each in only}) > 1:
            raise DataError(
                f"expected arrays, got a {type(only).__name__} of {len(only)}. "
                "Hint: one after the other: ArrayDataset(inputs, targets); numpy.stack makes one array of a list."
            )
        lengths = [len(array) for array in arrays]
        if len(set(lengths)) != 1:
            hint = " Hint: inputs and targets of one split." if len(lengths) == 2 else ""
            raise DataError(f"expected arrays of one common length, got lengths {lengths}.{hint}")
        with warnings.catch_warnings():
            # Read-only (memory-mapped) arrays are welcome: fetching copies, nothing here writes.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            self.arrays = tuple(torch.as_tensor(array) for array in arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(array[index] for array in self.arrays)

    def check_workers(self, num_workers: int) -> None:
        """Refuse (`ConfigError`) loader processes for arrays that are not the CPU's: they could not read them."""
        places = {str(array.device) for array in self.arrays} - {"cpu"}
        if num_workers and places:
            raise ConfigError(
                f"num_workers={num_workers}: loader processes cannot read arrays on {', '.join(sorted(places))}. "
                "Hint: num_workers=0, which is fast there; or arrays on the CPU."
            )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return the `content_hash` of the arrays."""
        return content_hash(self.arrays)

    def fetch_micro_batch(self, indices: Indices) -> tuple[Tensor, ...]:
        """See `BatchedDataset.fetch_micro_batch`."""
        chosen = torch.from_numpy(indices)
        return tuple([array.index_select(0, chosen.to(array.device)) for array in self.arrays])
