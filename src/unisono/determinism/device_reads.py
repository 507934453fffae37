"""Small numbers that lie on a device, brought to the CPU together: it waits for the device once, not for each of them.

In: tensors, and what is to be done with their values. Out: the same values on the CPU, bit for bit.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from unisono.determinism import devices

_FLAWED = (torch.float32, torch.float64)  # what `DeviceReads.flaw_of` knows
_ZEROS = 64
_ALONE = 1 << 20  # bytes from which a tensor is copied by itself: what is joined takes a GPU's memory once more
_ALIGNMENT = 64


@final
class DeviceReads:
    """What will be read from devices, with one copy, and who gets it."""

    def __init__(self) -> None:
        self._asked: list[tuple[Sequence[Tensor], Callable[..., Any]]] = []
        self._zeros: dict[torch.device, list[Tensor]] = {}
        self._ones: dict[torch.device, Tensor] = {}

    def ask(self, tensors: Sequence[Tensor], then: Callable[..., Any]) -> None:
        """Have tensors read: `then` is called by `read` with each of them, on the CPU.

        They must stay as they are until then, as far as the device's own order of work does not see to that.
        """
        self._asked.append((tensors, then))

    def read(self) -> None:
        """Wait once for each device that holds some of what was asked for, and hand it out in the order of asking."""
        asked, self._asked = self._asked, []
        found = iter(brought([tensor for tensors, _ in asked for tensor in tensors]))
        for tensors, then in asked:
            then(*[next(found) for _ in tensors])

    def flaw_of(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return what is 0 where all elements are finite, and 1 elsewhere: float32 (1,), on the tensors' device.

        Args:
            tensors: Of one device and float32 or float64, any number but none; they keep their bits.
        """
        device = tensors[0].device
        if not self._zeros.get(device):
            self._zeros[device] = [*torch.zeros(_ZEROS, dtype=torch.float32, device=device).split(1)]
            self._ones.setdefault(device, torch.ones(1, dtype=torch.float32, device=device))
        found = self._zeros[device].pop()
        # Torch's kernel for scaled gradients looks at many tensors at a time; they are multiplied by one.
        torch._amp_foreach_non_finite_check_and_unscale_([*tensors], found, self._ones[device])
        return found

    def forget(self) -> None:
        """Read nothing of what was asked for."""
        self._asked = []


def reads_of(tensors: Iterable[Tensor]) -> DeviceReads | None:
    """Return what reads together what a step tells of a model with these tensors; None where they are on the CPU."""
    return DeviceReads() if any(devices.is_gpu(tensor.device) for tensor in tensors) else None


def brought(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors on the CPU, contiguous, waiting once for each device; those on the CPU as they are.

    Small ones come in one copy from each device, large ones by themselves.
    """
    found = [tensor.detach() for tensor in tensors]
    places: dict[torch.device, dict[torch.dtype, list[int]]] = {}
    large = [index for index, tensor in enumerate(found) if tensor.device.type != "cpu" and tensor.nbytes >= _ALONE]
    late = _begin_alone([found[index] for index in large])
    # Wide numbers first: each kind then begins at a multiple of its size.
    for index in sorted({*range(len(found))} - {*large}, key=lambda index: (-found[index].itemsize, index)):
        tensor = found[index]
        if tensor.device.type != "cpu":
            places.setdefault(tensor.device, {}).setdefault(tensor.dtype, []).append(index)
    copies = [_begin([[found[index] for index in indices] for indices in kinds.values()]) for kinds in places.values()]
    for event in [devices.mark(device) for device in {**places, **dict.fromkeys(found[at].device for at in large)}]:
        event.synchronize()
    for index, copy in zip(large, late, strict=True):
        found[index] = copy
    for kinds, pieces in zip(places.values(), copies, strict=True):
        for (dtype, indices), piece in zip(kinds.items(), pieces, strict=True):
            values = piece.view(dtype).split([found[index].numel() for index in indices])
            for index, value in zip(indices, values, strict=True):
                found[index] = value.view(tensors[index].shape)
    return found


def _begin(groups: Sequence[Sequence[Tensor]]) -> Sequence[Tensor]:
    """Begin to copy groups of tensors, of one dtype each; return the bytes of each group, which are still to come."""
    flats = [torch.cat([tensor.reshape(-1) for tensor in group]).view(torch.uint8) for group in groups]
    raw = torch.cat(flats) if len(flats) > 1 else flats[0]
    found: Sequence[Tensor] = devices.pinned(len(raw)).copy_(raw, non_blocking=True).split([*map(len, flats)])
    return found


def _begin_alone(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Begin to copy large tensors to places in one piece of memory; they are still to come."""
    ends = [0, *itertools.accumulate(-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors)]
    room = devices.pinned(ends[-1]) if tensors else None
    found = []
    for tensor, start in zip(tensors, ends, strict=False):
        assert room is not None
        place = room[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        found.append(place.copy_(tensor.resolve_conj().resolve_neg(), non_blocking=True))
    return found


def largest_of(grads: Iterable[Tensor | None]) -> list[Tensor]:
    """Return largest magnitudes, (1,) for each device, where they lie: they are finite where every element is."""
    return [_largest(group) for group in _groups(grads).values()]


def flaws_of(grads: Iterable[Tensor | None], reads: DeviceReads) -> list[Tensor]:
    """Return numbers, (1,) for each device and dtype, where they lie: they are 0 where every element is finite."""
    return [
        reads.flaw_of(group) if dtype in _FLAWED else _largest(group) * 0.0
        for (_, dtype), group in _groups(grads).items()
    ]


def _largest(group: Sequence[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(list(group), float("inf"))).amax(0, keepdim=True)


def _groups(grads: Iterable[Tensor | None]) -> dict[tuple[torch.device, torch.dtype], list[Tensor]]:
    """Return what is there by device and dtype; a complex tensor as real."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for grad in grads:
        if grad is not None and grad.numel():
            plain = torch.view_as_real(grad) if grad.is_complex() else grad
            groups.setdefault((plain.device, plain.dtype), []).append(plain.detach())
    return groups
