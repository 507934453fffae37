"""A probe of this process's arithmetic: fixed numbers through kernels that training rests on, and their hash.

Software, CPU capability and flags say which kernels are chosen; the probe looks at what they compute. Two processes
with other hashes cannot have the same bits, whatever they say of themselves. With equal ones they may still differ in
a kernel, or at a size, that is not among these.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_FACTOR, _PRIME, _SPREAD = 2_654_435_761, 1_000_003, 4.0
_HALVES = (torch.bfloat16, torch.float16)


def probe(device: torch.device, *dtypes: torch.dtype) -> dict[str, str]:
    """Return for each dtype, by name, 16 hex digits: a hash of what this process computes from fixed numbers.

    Args:
        device: Where to compute.
        dtypes: Of floating point. Those of 16 bits go through what autocast computes in them: products and
            convolutions.
    """
    with torch.no_grad():
        return {str(dtype).removeprefix("torch."): _hash(_results(device, dtype)) for dtype in dict.fromkeys(dtypes)}


def compare_probes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return one line for each dtype that both have and whose bits differ: name, before, after; pure."""
    return [
        f"computed bits of {name}: {before[name]} -> {after[name]}"
        for name in before
        if name in after and before[name] != after[name]
    ]


def _results(device: torch.device, dtype: torch.dtype) -> Iterator[Tensor]:
    left, right, bias = (_numbers(shape, device, dtype) for shape in ((65, 259), (259, 67), (67,)))
    yield left @ right
    yield torch.addmm(bias, left[:3], right)
    images, filters = (_numbers(shape, device, dtype) for shape in ((2, 8, 13, 13), (16, 8, 3, 3)))
    convolved = torch.conv2d(images, filters, padding=1)
    yield convolved
    if dtype in _HALVES:
        return
    how: Any = (None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, (True, True, False))
    yield from torch.ops.aten.convolution_backward(convolved, images, filters, *how)[:2]
    yield from (left.exp(), left.tanh(), left.sigmoid(), left.erf(), left.sin(), left.abs().log1p(), left.abs().rsqrt())
    yield from (left.softmax(-1), torch.layer_norm(left, [259]), torch.addcdiv(left, left, left.abs() + 1))
    flat = _numbers((40_003,), device, dtype)
    yield from (flat.sum(), flat.norm(), flat.var(), left.sum(0), left.sum(1), left.mean(1))


def _numbers(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return numbers from -2 to 2 that no generator has made: whole numbers, divided once, are equal everywhere."""
    counted = torch.arange(torch.Size(shape).numel(), device=device)
    return ((counted * _FACTOR % _PRIME).to(torch.float64) / _PRIME * _SPREAD - _SPREAD / 2).to(dtype).view(shape)


def _hash(results: Iterator[Tensor]) -> str:
    found = hashlib.sha256()
    for result in results:
        found.update(result.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]
