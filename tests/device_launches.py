"""How many kernels CUDA launches for one operation, by torch's source (MultiTensorApply.cuh, Shape.cu, ForeachUtils.h).

An operation on lists of tensors takes many at a time where all have one dtype and neighbours have one layout; each by
itself elsewhere. What only views or makes memory launches nothing.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

NO_KERNEL = (
    "view", "_unsafe_view", "detach", "alias", "t", "transpose", "expand", "as_strided", "slice", "select", "split",
    "split_with_sizes", "unbind", "squeeze", "unsqueeze", "permute", "empty_like", "empty", "empty_strided",
    "new_empty", "new_empty_strided", "_reshape_alias", "unfold", "diagonal", "view_as_real", "lift_fresh",
    "is_same_size", "set_", "record_stream",
)  # fmt: skip
_TENSORS = (110, 64, 48, 36)  # of one kernel, by how many lists it reads and writes
_BLOCKS, _CHUNK = 320, 1 << 16
_CONCATENATED = 64  # tensors of one kernel; torch takes up to 128


def kernels(name: str, args: Sequence[Any], out: Any) -> int:
    """Return how many kernels an operation is.

    Args:
        name: Of torch, such as ``aten::add``.
        args: Its arguments.
        out: What it returns.
    """
    short = name.partition("::")[2]
    if short in NO_KERNEL:
        return 0
    if short == "cat":
        return -(-len(args[0]) // _CONCATENATED)
    if "_foreach_" not in short:
        return 1
    lists = [arg for arg in args if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], Tensor)]
    more = 2 if "norm" in short or "max" in short else 0  # memory of zeros before, what adds up chunks after
    makes = not short.endswith("_") and bool(pytree.tree_leaves(out)) and not more
    if not all(_fits(tensors, lists[0]) for tensors in lists):
        return len(lists[0])
    return _taken_together(lists[0], len(lists) + makes) + more


def _fits(tensors: Sequence[Tensor], first: Sequence[Tensor]) -> bool:
    return len(tensors) == len(first) and all(
        (one.dtype, one.shape, one.stride(), one.device) == (first[0].dtype, other.shape, other.stride(), other.device)
        for one, other in zip(tensors, first, strict=True)
    )


def _taken_together(tensors: Sequence[Tensor], depth: int) -> int:
    """Return how many kernels take lists of such tensors."""
    found, taken, blocks = 0, 0, 0
    for tensor in tensors:
        chunks = -(-tensor.numel() // _CHUNK)
        taken += bool(chunks)
        blocks += chunks
        while blocks >= _BLOCKS:
            found, blocks, taken = found + 1, blocks - _BLOCKS, 1
        if taken == _TENSORS[depth - 1]:
            found, blocks, taken = found + 1, 0, 0
    return found + bool(blocks)
