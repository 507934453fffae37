"""Operations of the recipes' models: torch's mathematics at a fraction of its cost on a CPU.

`block_windows` is a strided convolution over texts that stand one after another, as matrix products without copies. A
window of width 15 and stride 7 over rows of 64 features is 2 whole blocks of 7 rows and one row more: over the blocks
(rows, 448) it is ``X[t] W0 + X[t+1] W1 + X[t+2][:64] W2``. Each term is a product with a *slice* of the blocks, so no
window is ever written down. Windows that reach from one text into the next compute numbers that nobody reads; their
gradient is zero. On a CPU, float32 values and the blocks' gradient are oneDNN's convolution over the same memory, still
without copies: it uses 512-bit registers on processors where MKL's products do not. It adds in another order than
``torch.nn.Conv1d`` over padded texts, so its bits are others.

`embed_rows` is ``torch.nn.functional.embedding`` whose gradient is summed row by row: the same additions in the same
order, so the same bits.

`patch_conv` is a convolution of images with few channels, as a matrix product over patches. The kernels that
``torch.nn.functional.conv2d`` picks have too few numbers to add up there: the weight's gradient takes them four times
as long. The patches stand as columns, ``(channels * k * k, places)``: copied along whole rows of the image, and of the
one shape in which both the product and the weight's gradient are quick. It adds in another order, so its bits are
others.

`drop` is dropout whose mask costs one random byte a value instead of a random double: other masks of the same
distribution, so other bits.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

HAS_ONEDNN = torch.backends.mkldnn.is_available()

LEVELS = 256
"""Of the chance that decides whether `drop` drops a value: a byte."""


class BlockWindows(torch.autograd.Function):
    """``y[t] = bias + sum over i of X[t + i] @ weight_i``, see `block_windows`."""

    @staticmethod
    def forward(blocks: Tensor, weight: Tensor, bias: Tensor, channels: int) -> Tensor:
        """Return the sums over all windows that fit."""
        if _is_for_onednn(blocks):
            line, kernel, stride = _as_convolution(blocks, weight, channels)
            return torch.conv2d(line, kernel, bias, stride=(1, stride))[0, :, 0].t()
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
        ctx.channels = inputs[3]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        """Return the gradients of blocks, weight and bias."""
        blocks, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        d_weight = torch.empty_like(weight)
        for rows, columns, part in _pieces(blocks, weight)[1]:
            torch.mm(blocks[rows, columns].t(), gradient, out=d_weight[part])
        return _gradient_of_blocks(blocks, weight, gradient, ctx.channels), d_weight, gradient.sum(0), None


def _gradient_of_blocks(blocks: Tensor, weight: Tensor, gradient: Tensor, channels: int) -> Tensor:
    if _is_for_onednn(blocks):
        line, kernel, stride = _as_convolution(blocks, weight, channels)
        found: Tensor = torch.ops.aten.convolution_backward(
            gradient.t()[None, :, None], line, kernel, None, [1, stride], [0, 0], [1, 1], False, [0, 0], 1,
            [True, False, False],
        )[0]  # fmt: skip
        return found.permute(0, 2, 3, 1).reshape(blocks.shape)
    num_windows, pieces = _pieces(blocks, weight)
    total = torch.empty_like(blocks)
    total[num_windows:] = 0
    for number, (rows, columns, part) in enumerate(pieces):
        if number == 0:
            torch.mm(gradient, weight[part].t(), out=total[rows, columns])
        else:
            total[rows, columns].addmm_(gradient, weight[part].t())
    return total


def _is_for_onednn(blocks: Tensor) -> bool:
    return HAS_ONEDNN and blocks.device.type == "cpu" and blocks.dtype == torch.float32


def _as_convolution(blocks: Tensor, weight: Tensor, channels: int) -> tuple[Tensor, Tensor, int]:
    """Return blocks and weight as a convolution over one line of pixels, channels together, and its stride."""
    line = blocks.reshape(1, 1, -1, channels).permute(0, 3, 1, 2)
    kernel = weight.t().reshape(weight.shape[1], 1, -1, channels).permute(0, 3, 1, 2)
    return line, kernel, blocks.shape[1] // channels


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


def block_windows(blocks: Tensor, weight: Tensor, bias: Tensor, channels: int) -> Tensor:
    """Convolve rows that are grouped in blocks of one stride.

    Args:
        blocks: (num_blocks, stride * channels): `stride` rows of `channels` features each; first block first.
        weight: (width * channels, out): row ``offset * channels + channel``; at least `stride * channels` rows.
        bias: (out,).
        channels: Features of a row.

    Returns:
        (num_blocks - ceil(width / stride) + 1, out): window t starts at block t.
    """
    result: Tensor = BlockWindows.apply(blocks, weight, bias, channels)  # type: ignore[no-untyped-call]
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


def patch_conv(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve with stride 1, padded so that the size stays.

    Args:
        images: (n, channels, height, width).
        weight: (out, channels, k, k), k odd.
        bias: (out,), or None.

    Returns:
        (n, out, height, width) in torch's ``channels_last`` layout.
    """
    number, channels, height, width = images.shape
    out, _, size, _ = weight.shape
    padded = F.pad(images.transpose(0, 1), [size // 2] * 4)  # (channels, n, height + k - 1, width + k - 1)
    patches = padded.unfold(2, height, 1).unfold(3, width, 1)  # (channels, n, k, k, height, width)
    columns = patches.permute(0, 2, 3, 1, 4, 5).reshape(channels * size * size, number * height * width)
    # Contiguous: then the weight's gradient is ``columns @ gradient``, not its slow transpose.
    kernel = weight.reshape(out, -1).t().contiguous()
    rows = columns.t() @ kernel if bias is None else torch.addmm(bias, columns.t(), kernel)
    return rows.view(number, height, width, out).permute(0, 3, 1, 2)


def drop(values: Tensor, rate: float, training: bool) -> Tensor:
    """Set a share `rate` of the values to nothing and scale the others up, in training; see `torch.nn.Dropout`.

    Args:
        values: Floating-point.
        rate: From 0 to below 1; rounded to a multiple of 1/256.
        training: False returns `values`.
    """
    dropped = min(round(rate * LEVELS), LEVELS - 1)
    if not training or dropped == 0:
        return values
    words = torch.empty(-(-values.numel() // 8), dtype=torch.int64, device=values.device)
    chance = words.random_(-(2**63), None).view(torch.uint8)[: values.numel()].view(values.shape)
    return values * (chance >= dropped).to(values.dtype).mul_(LEVELS / (LEVELS - dropped))
