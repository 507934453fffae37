"""The naive sums that the fast ones must equal bit for bit, written without a look at them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def pairwise_sum(values: Sequence[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Add neighbours two by two, level by level; the odd one out waits for the next level."""
    level = list(values)
    while len(level) > 1:
        pairs = [add(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def bits(tensor: Tensor) -> bytes:
    """Return the tensor's bytes in logical order: -0.0 and 0.0 differ, a NaN equals itself."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def random_leaves(count: int, shape: Sequence[int], dtype: torch.dtype, seed: int) -> list[Tensor]:
    """Return tensors of very different magnitudes, so that every order of addition rounds differently."""
    generator = torch.Generator().manual_seed(seed)
    size = (count, *shape)
    values = torch.randn(size, generator=generator, dtype=torch.float64)
    scales = torch.randint(-6, 7, size, generator=generator)
    return list((values * 2.0**scales).to(dtype))
