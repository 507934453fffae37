"""Small tensors of one device, copied row by row: what they were, and what they have become, in few kernels.

In: tensors that stay where they are while their numbers change. Out, on their device: which differ from the first row
in any later one, and the largest whole numbers of the later ones.
"""

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import final

import torch
from torch import Tensor

from unisono.determinism.devices import carried
from unisono.determinism.switches import address_of

_MOST_BYTES, _MOST_ROWS = 1 << 24, 16
_ALIGNMENT = 16


@final
class DeviceRows:
    """Rows of the same tensors; the first one is where `start` and `restore` write to and read from.

    Args:
        tensors: Of one device.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [*tensors]
        kinds: dict[torch.dtype, list[int]] = {}
        for index, tensor in enumerate(tensors):
            kinds.setdefault(tensor.dtype, []).append(index)
        self._spans: dict[torch.dtype, tuple[int, int]] = {}  # of a row, in bytes
        self._indices, end = kinds, 0
        for dtype, indices in kinds.items():
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + sum(tensors[index].nbytes for index in indices)
            self._spans[dtype] = start, end
        width = -(-end // _ALIGNMENT) * _ALIGNMENT
        self.capacity = max(1, min(_MOST_ROWS, _MOST_BYTES // max(1, width)))  #: Rows after the first one.
        rows = torch.empty((1 + self.capacity, width), dtype=torch.uint8, device=tensors[0].device)
        self._typed = {dtype: rows[:, start:end].view(dtype) for dtype, (start, end) in self._spans.items()}
        self._copies: dict[int, list[list[Tensor]]] = {}
        self._groups = _groups(kinds)
        self._addresses: list[int] | None = None
        self._look()
        self.num_taken = 0  #: Rows after the first one that are in use.
        self._counted = [index for indices in kinds.values() for index in indices if tensors[index].numel()]
        ends = itertools.accumulate(tensors[index].numel() for index in self._counted)
        self._ends = carried(
            torch.tensor([end - 1 for end in ends], dtype=torch.int64, device="cpu"), tensors[0].device
        )

    def first(self) -> list[Tensor]:
        """Return the first row's copies, in the order of the tensors."""
        found = dict(
            pair for dtype, indices in self._indices.items() for pair in zip(indices, self._cut(dtype, 0), strict=True)
        )
        return [found[index].view(tensor.shape) for index, tensor in enumerate(self._tensors)]

    def start(self) -> None:
        """Begin anew with what the tensors are now."""
        self.num_taken = 0
        self._write(0, self._tensors)

    def restore(self) -> None:
        """Give the tensors the first row's numbers."""
        self._look()
        for row, live in zip(self._row(0), self._live, strict=True):
            torch._foreach_copy_(live, row)
        if self._odd:
            first = self.first()
            for index in self._odd:
                self._tensors[index].detach().copy_(first[index])

    def take(self, present: Sequence[Tensor]) -> None:
        """Keep what the tensors, or others like them in their place, are now, in a row of its own."""
        self.num_taken += 1
        self._write(self.num_taken, present)

    def differences(self) -> tuple[list[int], Tensor]:
        """Return which tensors, and of how many elements of them and those before, some row differs from the first."""
        marks = [(typed[1 : 1 + self.num_taken] != typed[:1]).any(0) for typed in self._typed.values()]
        mark = marks[0] if len(marks) == 1 else torch.cat(marks)
        counts = mark.cumsum(0, dtype=torch.int32 if len(mark) < 1 << 31 else torch.int64)
        return self._counted, counts.index_select(0, self._ends)

    def largest(self) -> dict[int, Tensor]:
        """Return the largest values of whole numbers in all rows but the first, by the tensors' indices."""
        found: dict[int, Tensor] = {}
        for dtype, indices in self._indices.items():
            if not (dtype.is_floating_point or dtype.is_complex):
                most = self._typed[dtype][1 : 1 + self.num_taken].amax(0)
                sizes = [self._tensors[index].numel() for index in indices]
                for index, part in zip(indices, most.split(sizes), strict=True):
                    found[index] = part.view(self._tensors[index].shape)
        return found

    def _look(self) -> None:
        """See where the tensors are, if their memory is another one than before."""
        addresses = [*map(address_of, self._tensors)]
        if addresses != self._addresses:
            self._addresses, self._live = addresses, self._words_of(self._tensors)
            self._odd = [index for index, tensor in enumerate(self._tensors) if not tensor.is_contiguous()]

    def _write(self, row: int, present: Sequence[Tensor]) -> None:
        self._look()
        are_known = not self._odd and all(map(operator.is_, present, self._tensors))
        found = self._live if are_known else self._words_of(present)
        for copies, now in zip(self._row(row), found, strict=True):
            torch._foreach_copy_(copies, now)

    def _cut(self, dtype: torch.dtype, row: int) -> Sequence[Tensor]:
        sizes = [self._tensors[index].numel() for index in self._indices[dtype]]
        found: Sequence[Tensor] = self._typed[dtype][row].split(sizes)
        return found

    def _row(self, row: int) -> list[list[Tensor]]:
        """Return a row's words, one list for each size of words."""
        if row not in self._copies:
            self._copies[row] = [
                [part.view(word) for dtype in dtypes for part in self._cut(dtype, row)]
                for word, dtypes in self._groups.items()
            ]
        return self._copies[row]

    def _words_of(self, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        return [
            [tensors[index].detach().reshape(-1).view(word) for dtype in dtypes for index in self._indices[dtype]]
            for word, dtypes in self._groups.items()
        ]


def _groups(dtypes: Iterable[torch.dtype]) -> dict[torch.dtype, list[torch.dtype]]:
    """Return which dtypes are copied together, by the words that they are seen as then."""
    found: dict[torch.dtype, list[torch.dtype]] = {}
    for dtype in dtypes:
        word = {1: torch.uint8, 2: torch.int16}.get(dtype.itemsize, torch.int32)
        found.setdefault(word, []).append(dtype)
    return found
