"""The operators of reductions, and the order in which they combine values: the canonical tree's (no ranks here).

For every operator the values are combined element by element in the order of the tree whose leaves are the ranks. Only
which of +0 and -0 MIN and MAX give, and the payload of a NaN, may depend on where in the buffer an element lies.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from unisono.collectives.tree import add_up

REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "PRODUCT": torch.mul,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
"""The operators: each combines two tensors and takes ``out=``. AVG is the SUM, which `divide` ends."""


def combine_values(values: list[Tensor], op: str, out: Tensor) -> None:
    """Combine tensors of equal shape in the order of the canonical tree.

    Args:
        values: The leaves' values, in order; not changed, but for one that is `out`.
        op: A name of `REDUCTIONS` that `is_defined` for their dtype.
        out: Overwritten with the result, in the last step; may be one of the values.
    """
    function = REDUCTIONS[op]
    total = add_up(values, function, functools.partial(function, out=out))
    if total is not out:
        out.copy_(total)
    if op == "AVG":
        divide(out, len(values))


def divide(total: Tensor, count: int) -> None:
    """Divide a SUM by the number of its values, in place: integers toward zero, as NCCL does."""
    is_exact = not (total.dtype.is_floating_point or total.dtype.is_complex)
    total.div_(count, rounding_mode="trunc" if is_exact else None)


@functools.cache
def is_defined(op: str, dtype: torch.dtype) -> bool:
    """Whether an operator can combine values of a dtype: asked of torch itself."""
    if op not in REDUCTIONS or (op == "AVG" and dtype == torch.bool):
        return False
    try:
        REDUCTIONS[op](torch.empty(1, dtype=dtype), torch.empty(1, dtype=dtype))
    except RuntimeError:
        return False
    return True
