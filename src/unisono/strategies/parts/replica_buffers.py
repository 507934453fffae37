"""Buffers (BatchNorm's statistics, say) under several replicas: each starts from the step's start, results merged.

Floating-point (and complex) buffers are merged like gradients: each replica's result, weighted by its share of the
batch, is added along the canonical tree. Other buffers (counters, masks) take the largest value any replica has left. A
buffer that no replica has changed keeps its bits.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unisono.collectives.transport import Transport
from unisono.errors import StepError


class ReplicaBuffers:
    """Keeps the buffers of some modules apart between replicas.

    Args:
        named_modules: As ``model.named_modules()`` gives them.

    Attributes:
        num_buffers: Number of buffers; the floating-point ones come first.
        num_float: Number of floating-point buffers.
    """

    def __init__(self, named_modules: Iterable[tuple[str, nn.Module]]) -> None:
        slots: dict[int, tuple[nn.Module, str, Tensor]] = {}
        paths: dict[int, str] = {}
        self._empty: list[tuple[nn.Module, str]] = []
        for path, module in named_modules:
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    slots.setdefault(id(buffer), (module, name, buffer))
                    paths.setdefault(id(buffer), f"{path}.{name}" if path else name)
                else:
                    self._empty.append((module, name))
        ordered = sorted(slots.values(), key=lambda slot: not _is_float(slot[2]))  # stable: floats first
        self._owners = [(module, name) for module, name, _ in ordered]
        self._buffers = [buffer for _, _, buffer in ordered]
        self._paths = [paths[id(buffer)] for buffer in self._buffers]
        self._start = [buffer.clone() for buffer in self._buffers]
        self.num_buffers = len(self._buffers)
        self.num_float = sum(_is_float(buffer) for buffer in self._buffers)
        self._largest: list[Tensor] | None = None

    def floats(self) -> list[Tensor]:
        """Return the floating-point buffers, in the model's order."""
        return self._buffers[: self.num_float]

    def is_saved(self) -> list[bool]:
        """Say of each of `floats` whether a checkpoint holds it: not the non-persistent ones, which start anew."""
        return [name not in module._non_persistent_buffers_set for module, name in self._owners[: self.num_float]]

    def saved_floats(self) -> dict[str, Tensor]:
        """Return by name those of `floats` that a checkpoint holds."""
        named = zip(self._paths, self.floats(), self.is_saved(), strict=False)
        return {path: buffer for path, buffer, is_saved in named if is_saved}

    def start_step(self) -> None:
        """Remember the values that every replica of the step starts from."""
        self._largest = None
        if self._buffers:
            torch._foreach_copy_(self._start, self._buffers)

    def start_replica(self) -> None:
        """Put the step's starting values back."""
        if not self._buffers:
            return
        for (module, name), buffer in zip(self._owners, self._buffers, strict=True):
            module._buffers[name] = buffer  # a module may have put another tensor in its place
        torch._foreach_copy_(self._buffers, self._start)

    def start_apart(self) -> None:
        """Give the next replica copies of its own of the starting values, which its backward pass may need later.

        For passes that overlap; after `collect`, `start_replica` puts the model's own buffers back.
        """
        for (module, name), start in zip(self._owners, self._start, strict=True):
            module._buffers[name] = start.clone()

    def collect(self, weight: float, changed: npt.NDArray[np.bool_]) -> list[Tensor]:
        """Return the weighted values that a replica has left in floating-point buffers; flags go into `changed`."""
        for module, name in self._empty:
            if module._buffers[name] is not None:
                raise StepError(
                    f"the buffer {name!r} of {type(module).__name__} was registered as None and filled while training, "
                    "so it cannot be kept apart between replicas. Hint: register it with its first value."
                )
        if not self._buffers:
            return []
        present = [module._buffers[name] for module, name in self._owners]
        for index, (buffer, start) in enumerate(zip(present, self._start, strict=True)):
            assert buffer is not None
            changed[index] |= not torch.equal(buffer, start)
        counters = [buffer.clone() for buffer in present[self.num_float :] if buffer is not None]
        if self._largest is None:
            self._largest = counters
        else:
            self._largest = [torch.maximum(a, b) for a, b in zip(self._largest, counters, strict=True)]
        floats = [buffer for buffer in present[: self.num_float] if buffer is not None]
        return list(torch._foreach_mul(floats, weight)) if floats else []

    def finish_step(self, transport: Transport, merged: Sequence[Tensor], changed: npt.NDArray[np.bool_]) -> None:
        """Leave the merged values in the model; collective."""
        if not self._buffers:
            return
        self.start_replica()
        for buffer, value, is_changed in zip(self._buffers, merged, changed, strict=False):
            if is_changed:
                buffer.copy_(value)
        moved = np.flatnonzero(changed[self.num_float :])
        if not len(moved):
            return
        counters = [self._buffers[self.num_float + index] for index in moved]
        local = [self._largest[index] for index in moved] if self._largest is not None else counters
        # A rank without a replica in this step has no say: its first element is 0.
        flag = torch.tensor([int(self._largest is not None)])
        mine = torch.cat([flag, *[value.reshape(-1).to("cpu", torch.int64) for value in local]])
        everyone = torch.empty(transport.world_size * len(mine), dtype=torch.int64)
        transport.all_gather(mine, everyone)
        rows = everyone.view(transport.world_size, -1)
        largest = rows[rows[:, 0] == 1][:, 1:].amax(dim=0)
        for buffer, piece in zip(counters, largest.split([buffer.numel() for buffer in counters]), strict=True):
            buffer.copy_(piece.view(buffer.shape))


def _is_float(buffer: Tensor) -> bool:
    return buffer.is_floating_point() or buffer.is_complex()
