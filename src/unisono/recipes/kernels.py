"""Two operations of text models: torch's mathematics at a fraction of its cost on a CPU.

`block_windows` is a strided convolution over texts that stand one after another, as matrix products without copies. A
window of width 15 and stride 7 over rows of 64 features is 2 whole blocks of 7 rows and one row more: over the blocks
(rows, 448) it is ``X[t] W0 + X[t+1] W1 + X[t+2][:64] W2``. Each term is a product with a *slice* of the blocks, so no
window is ever written down. Windows that reach from one text into the next compute numbers that nobody reads; their
gradient is zero. It adds in another order than ``torch.nn.Conv1d``, so its bits are others.

`embed_rows` is ``torch.nn.functional.embedding`` whose gradient is summed row by row: the same additions in the same
order, so the same bits.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class BlockWindows(torch.autograd.Function):
    """``y[t] = bias + sum over i of X[t + i] @ weight_i``, see `block_windows`."""

    @staticmethod
    def forward(blocks: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the sums over all windows that fit."""
        num_windows, pieces = _pieces(blocks, weight)
        total = blocks.new_empty(num_windows, weight.shape[1])
        for number, (rows, columns, part) in enumerate(pieces):
            if number == 0:
                torch.addmm(bias, blocks[rows, columns], weight[part], out=total)
            else:
                total.addmm_(blocks[rows, columns], weight[part])
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the inputs; `output` is not needed."""
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return the gradients of blocks, weight and bias."""
        blocks, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        num_windows, pieces = _pieces(blocks, weight)
        d_weight = torch.empty_like(weight)
        d_blocks = torch.empty_like(blocks)
        d_blocks[num_windows:] = 0
        for number, (rows, columns, part) in enumerate(pieces):
            torch.mm(blocks[rows, columns].t(), gradient, out=d_weight[part])
            if number == 0:
                torch.mm(gradient, weight[part].t(), out=d_blocks[rows, columns])
            else:
                d_blocks[rows, columns].addmm_(gradient, weight[part].t())
        return d_blocks, d_weight, gradient.sum(0)


def _pieces(blocks: Tensor, weight: Tensor) -> tuple[int, list[tuple[slice, slice, slice]]]:
    """Return the number of windows, and for each block a window touches: rows, columns, rows of the weight."""
    block = blocks.shape[1]
    touched = -(-len(weight) // block)
    num_windows = len(blocks) - touched + 1
    pieces = []
    for number in range(touched):
        start, stop = number * block, min((number + 1) * block, len(weight))
        pieces.append((slice(number, number + num_windows), slice(0, stop - start), slice(start, stop)))
    return num_windows, pieces


def block_windows(blocks: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve rows that are grouped in blocks of one stride.

    Args:
        blocks: (num_blocks, stride * channels): `stride` rows of `channels` features each; first block first.
        weight: (width * channels, out): row ``offset * channels + channel``; at least `stride * channels` rows.
        bias: (out,).

    Returns:
        (num_blocks - ceil(width / stride) + 1, out): window t starts at block t.
    """
    result: Tensor = BlockWindows.apply(blocks, weight, bias)  # type: ignore[no-untyped-call]
    return result


class EmbedRows(torch.autograd.Function):
    """See `embed_rows`."""

    @staticmethod
    def forward(tokens: Tensor, weight: Tensor, padding_idx: int) -> Tensor:
        """Return the rows of `weight` at `tokens`."""
        return weight.index_select(0, tokens)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the tokens and the table's shape; `output` is not needed."""
        tokens, weight, ctx.padding_idx = inputs
        ctx.save_for_backward(tokens)
        ctx.shape = weight.shape

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        """Add each row of `gradient` to the row of its token."""
        (tokens,) = ctx.saved_tensors
        total = gradient.new_zeros(ctx.shape).index_add_(0, tokens, gradient.contiguous())
        total[ctx.padding_idx] = 0
        return None, total, None


def embed_rows(tokens: Tensor, weight: Tensor, padding_idx: int) -> Tensor:
    """Look up rows of an embedding.

    Args:
        tokens: int64 (n,).
        weight: (vocabulary, features).
        padding_idx: The row that never gets a gradient.

    Returns:
        (n, features).
    """
    result: Tensor = EmbedRows.apply(tokens, weight, padding_idx)  # type: ignore[no-untyped-call]
    return result
