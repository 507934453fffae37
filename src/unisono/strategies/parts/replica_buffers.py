"""Buffers (BatchNorm's statistics, say) under several replicas: each starts from the step's start, results merged.

Floating-point (and complex) buffers are merged like gradients: each replica's result, weighted by its share of the
batch, is added along the canonical tree. Other buffers (counters, masks) take the largest value any replica has left. A
buffer that no replica has changed keeps its bits.

Counters, which are small, travel in the step's report, so that nothing is left to tell once the ranks have it. Only
where a large mask has changed do the ranks meet once more, before anything in the model is overwritten.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unisono.collectives.rows import bytes_of
from unisono.collectives.transport import Transport
from unisono.determinism.device_reads import DeviceReads
from unisono.determinism.device_rows import DeviceRows
from unisono.determinism.devices import carried, is_gpu
from unisono.errors import StepError

_SMALL = 16
"""Elements that a buffer of whole numbers may have to travel in every step's report: counters have 1."""


class ReplicaBuffers:
    """Keeps the buffers of some modules apart between replicas."""

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
        on_gpu = any(is_gpu(buffer.device) for buffer in self._buffers)
        self._rows = _rows_of(self._buffers) if on_gpu else ()  # by device, with the buffers' indices
        firsts = dict(pair for indices, rows in self._rows for pair in zip(indices, rows.first(), strict=True))
        self._start = [firsts[index] if firsts else buffer.clone() for index, buffer in enumerate(self._buffers)]
        self.num_buffers = len(self._buffers)  #: Number of buffers; the floating-point ones come first.
        self.num_float = sum(_is_float(buffer) for buffer in self._buffers)  #: Number of floating-point buffers.
        #: Elements of the small buffers of whole numbers, which travel in the step's report.
        self.num_counted = num_counted(self._buffers)
        self._largest: list[Tensor] | None = None
        self._is_as_started = False  # whether nobody can have changed any of them since `start_step`
        self.is_watched = bool(self._buffers or self._empty)  #: Whether there is anything to keep apart, or to refuse.

    def floats(self) -> list[Tensor]:
        """Return the floating-point buffers, in the model's order."""
        return self._buffers[: self.num_float]

    def part(self, views: Sequence[Tensor], await_seal: Callable[[], None]) -> list[Tensor]:
        """Return the sums of `floats`; of those that no checkpoint holds copies, and zeros in their places.

        They start anew in a resumed run, so they are no part of the record. `await_seal` is called before.
        """
        merged = [*views]
        for index, (module, name) in enumerate(self._owners[: self.num_float]):
            if name in module._non_persistent_buffers_set:
                await_seal()
                merged[index] = views[index].clone()
                views[index].zero_()
        return merged

    def named(self) -> dict[str, Tensor]:
        """Return all buffers by name, the floating-point ones first."""
        return dict(zip(self._paths, self._buffers, strict=True))

    def saved(self) -> dict[str, Tensor]:
        """Return by name those that a checkpoint holds, the floating-point ones first."""
        named = zip(self._paths, self._owners, self._buffers, strict=True)
        return {
            path: buffer for path, (module, name), buffer in named if name not in module._non_persistent_buffers_set
        }

    def saved_floats(self) -> dict[str, Tensor]:
        """Return by name those of `floats` that a checkpoint holds."""
        return {path: buffer for path, buffer in self.saved().items() if _is_float(buffer)}

    def start_step(self) -> None:
        """Remember the values that every replica of the step starts from."""
        self._largest, self._is_as_started = None, True
        for _, rows in self._rows:
            rows.start()
        if not self._rows and self._buffers:
            torch._foreach_copy_(self._start, self._buffers)

    def start_replica(self) -> None:
        """Put the step's starting values back."""
        if not self._buffers:
            return
        self._put_in_place()
        if not self._rows:
            torch._foreach_copy_(self._buffers, self._start)
        elif not self._is_as_started:
            for _, rows in self._rows:
                rows.restore()
        self._is_as_started = False

    def _put_in_place(self) -> None:
        for (module, name), buffer in zip(self._owners, self._buffers, strict=True):
            module._buffers[name] = buffer  # a module may have put another tensor there

    def present(self) -> list[Tensor]:
        """Return what the buffers are now: a module may have put another tensor in the place of one."""
        found = [module._buffers[name] for module, name in self._owners]
        return [buffer for buffer in found if buffer is not None]

    def changed(self) -> list[str]:
        """Return the names of those that are not as the step has begun."""
        named = zip(self._paths, self._owners, self._start, strict=True)
        return [
            path for path, (module, name), start in named
            if (buffer := module._buffers[name]) is None
            or not (_is_like(buffer, start) and torch.equal(bytes_of(buffer), bytes_of(start)))  # of bits: NaN is NaN
        ]  # fmt: skip

    def ask_changed(self, reads: DeviceReads | None, then: Callable[[Sequence[str]], None]) -> None:
        """Give to `then` what `changed` says of now, at once; or let `reads` do it."""
        if reads is None:
            then(self.changed())
        else:
            now = [module._buffers[name] for module, name in self._owners]
            named = [*zip(self._paths, now, self._start, strict=True)]
            others = [path for path, new, old in named if new is None or not _is_like(new, old)]
            alike = [(path, new, old) for path, new, old in named if new is not None and _is_like(new, old)]
            flags = [(bytes_of(new) != bytes_of(old)).any() for _, new, old in alike]
            paths = [path for path, *_ in alike]
            reads.ask(flags, lambda *read: then([*others, *itertools.compress(paths, map(bool, read))]))

    def start_apart(self) -> None:
        """Give the next replica copies of its own of the starting values, which its backward pass may need later.

        For passes that overlap; after `collect`, `start_replica` puts the model's own buffers back.
        """
        for (module, name), buffer, start in zip(self._owners, self._buffers, self._start, strict=True):
            module._buffers[name] = torch.empty_like(buffer).copy_(
                start
            )  # with its strides: kernels may depend on them

    def collect(self, weight: float, changed: npt.NDArray[np.bool_], reads: DeviceReads | None = None) -> list[Tensor]:
        """Return the weighted values that a replica has left in floating-point buffers.

        Args:
            weight: Their factor.
            changed: bool (buffers,): set where it has changed one; at once, or by `reads`.
            reads: Is asked for what only a device knows; None: the CPU waits for it.

        Raises:
            StepError: A buffer that was None has been filled.
        """
        for module, name in self._empty:
            if module._buffers[name] is not None:
                raise StepError(
                    f"the buffer {name!r} of {type(module).__name__} was registered as None and filled while training, "
                    "so it cannot be kept apart between replicas. Hint: register it with its first value."
                )
        if not self._buffers:
            return []
        present = self.present()
        if reads is not None and self._rows:
            self._keep(present, changed, reads)
        else:
            for index, (buffer, start) in enumerate(zip(present, self._start, strict=True)):
                changed[index] |= not torch.equal(buffer, start)
            self._take_largest([buffer.clone() for buffer in present[self.num_float :]])
        floats = present[: self.num_float]
        return list(torch._foreach_mul(floats, weight)) if floats else []

    def _take_largest(self, counters: list[Tensor]) -> None:
        known = self._largest
        self._largest = counters if known is None else [*map(torch.maximum, known, counters)]

    def _keep(self, present: Sequence[Tensor], changed: npt.NDArray[np.bool_], reads: DeviceReads) -> None:
        """Keep what a replica has left on a GPU, to be looked at with others by `_look`."""
        self._changed = changed
        now = [*present]
        for index, (new, old) in enumerate(zip(present, self._start, strict=True)):
            if not _is_like(new, old):
                changed[index] = True
                if index >= self.num_float:
                    raise StepError(
                        f"the buffer {self._paths[index]!r}, {old.dtype} {tuple(old.shape)}, has become {new.dtype} "
                        f"{tuple(new.shape)} on {new.device}. Hint: keep shape, dtype and device of whole numbers."
                    )
                now[index] = old
        if any(rows.num_taken == rows.capacity for _, rows in self._rows):
            self._look(reads)
        for indices, rows in self._rows:
            rows.take([now[index] for index in indices])

    def _look(self, reads: DeviceReads) -> None:
        """Ask which buffers replicas have changed, and take the largest values, of all that has been kept."""
        found: dict[int, Tensor] = {}
        for indices, rows in self._rows:
            if rows.num_taken:
                order, counts = rows.differences()
                reads.ask([counts], functools.partial(_set_flags, self._changed, [indices[place] for place in order]))
                found |= {indices[place]: most for place, most in rows.largest().items()}
                rows.num_taken = 0
        if found:
            self._take_largest([found[index] for index in sorted(found)])

    def tell(self, counted: npt.NDArray[np.int64], reads: DeviceReads | None = None) -> None:
        """Write into `counted` the largest values that this rank's replicas have left in the small buffers.

        At once, or by `reads`.
        """
        if reads is not None:
            self._look(reads)
        if self._largest is not None and self.num_counted:
            small = [value.reshape(-1) for value in self._largest if _is_small(value)]
            if reads is None:
                counted[:] = torch.cat([value.to("cpu", torch.int64) for value in small]).numpy()
            else:
                reads.ask(small, lambda *told: np.copyto(counted, torch.cat([each.long() for each in told]).numpy()))

    def finish_step(
        self,
        transport: Transport,
        merged: Sequence[Tensor],
        changed: npt.NDArray[np.bool_],
        counted: npt.NDArray[np.int64],
    ) -> None:
        """Leave the merged values in the model; collective where a large buffer of whole numbers has changed.

        Args:
            transport: Joins the ranks.
            merged: The floating-point buffers' values.
            changed: bool (buffers,): some replica has changed it.
            counted: int64 (num_counted,): the largest values of the small ones, over all ranks.
        """
        if not self._buffers:
            return
        whole = self._buffers[self.num_float :]
        moved = [index for index in np.flatnonzero(changed[self.num_float :]).tolist() if not _is_small(whole[index])]
        values = self._largest_of_all(transport, moved) if moved else {}
        small = [index for index, buffer in enumerate(whole) if _is_small(buffer)]
        values |= self._told(transport, counted, small)
        left = dict(enumerate(merged)) | {self.num_float + index: piece for index, piece in values.items()}
        left = {index: left[index] for index in np.flatnonzero(changed).tolist()}
        if not self._rows:
            self.start_replica()
            for index, value in left.items():
                self._buffers[index].copy_(value.view(self._buffers[index].shape))
            return
        self._put_in_place()
        for indices in _lists(self._buffers):
            values_of = [left.get(index, self._start[index]).view(self._buffers[index].shape) for index in indices]
            torch._foreach_copy_([self._buffers[index] for index in indices], values_of)

    def _told(self, transport: Transport, counted: npt.NDArray[np.int64], small: Sequence[int]) -> dict[int, Tensor]:
        """Return the largest values of the small buffers by index; a device has its own, if there is one rank."""
        own = self._largest if transport.world_size == 1 else None
        if own is not None:
            return {index: own[index] for index in small}
        whole = self._buffers[self.num_float :]
        told, found = torch.from_numpy(counted), dict[int, Tensor]()
        on = {device: carried(told, device) for device in {whole[index].device for index in small}}
        start = 0
        for index in small:
            found[index] = on[whole[index].device][start : (start := start + whole[index].numel())]
        return found

    def _largest_of_all(self, transport: Transport, moved: Sequence[int]) -> dict[int, Tensor]:
        """Return the largest values, over all ranks, of some buffers of whole numbers, by index; collective."""
        whole = [self._buffers[self.num_float + index] for index in moved]
        local = [self._largest[index] for index in moved] if self._largest is not None else whole
        if transport.world_size == 1:
            return dict(zip(moved, local, strict=True))
        # A rank without a replica in this step has no say: its first element is 0.
        flag = torch.full((1,), int(self._largest is not None), device=whole[0].device)
        mine = torch.cat([flag, *[value.reshape(-1).to(flag.device, torch.int64) for value in local]])
        everyone = mine.new_empty(transport.world_size * len(mine))
        transport.all_gather(mine, everyone)
        rows = everyone.view(transport.world_size, -1)
        largest = rows[:, 1:].masked_fill(rows[:, :1] == 0, torch.iinfo(torch.int64).min).amax(dim=0)
        return dict(zip(moved, largest.split([buffer.numel() for buffer in whole]), strict=True))


def _lists(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return the indices of tensors that one kernel of a GPU takes together."""
    found: dict[object, list[int]] = {}
    for index, tensor in enumerate(tensors):
        found.setdefault((tensor.dtype, tensor.device), []).append(index)
    return [*found.values()]


def _rows_of(buffers: Sequence[Tensor]) -> Sequence[tuple[list[int], DeviceRows]]:
    found: dict[torch.device, list[int]] = {}
    for index, buffer in enumerate(buffers):
        found.setdefault(buffer.device, []).append(index)
    return [(indices, DeviceRows([buffers[index] for index in indices])) for indices in found.values()]


def _is_like(new: Tensor, old: Tensor) -> bool:
    return (new.shape, new.dtype, new.device) == (old.shape, old.dtype, old.device)


def _set_flags(changed: npt.NDArray[np.bool_], indices: Sequence[int], counts: Tensor) -> None:
    """Set which buffers have changed, from how many elements of each and of those before it have."""
    changed[indices] |= np.diff(counts.numpy(), prepend=0) != 0


def num_counted(buffers: Iterable[Tensor]) -> int:
    """Return how many elements of some buffers travel in the step's report."""
    return sum(buffer.numel() for buffer in buffers if not _is_float(buffer) and _is_small(buffer))


def _is_float(buffer: Tensor) -> bool:
    return buffer.is_floating_point() or buffer.is_complex()


def _is_small(buffer: Tensor) -> bool:
    return buffer.numel() <= _SMALL
