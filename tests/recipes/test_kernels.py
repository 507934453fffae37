"""The fast operations compute what torch's own compute."""

import pytest
import torch
from torch.nn import functional as F

from unisono.recipes.kernels import block_windows, drop, embed_rows, patch_conv


@pytest.mark.parametrize(("width", "stride"), [(15, 7), (14, 7), (7, 7), (3, 1), (5, 2), (6, 4)])
def test_windows_are_a_strided_convolution(width, stride):
    """Values of nn.functional.conv1d, for widths that are whole blocks and others, up to rounding."""
    rows, channels, out = 12 * stride, 3, 5
    x = torch.randn(rows, channels, dtype=torch.float64)
    weight, bias = torch.randn(width * channels, out, dtype=torch.float64), torch.randn(out, dtype=torch.float64)
    kernel = weight.view(width, channels, out).permute(2, 1, 0)
    expected = F.conv1d(x.t()[None], kernel, bias, stride=stride)[0].t()
    found = block_windows(x.reshape(12, -1), weight, bias, channels)
    assert len(found) == 12 - -(-width // stride) + 1
    assert torch.allclose(found, expected[: len(found)])


def test_gradients_of_windows_are_right():
    """By finite differences."""
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((6, 14), (30, 4), (4,))]
    assert torch.autograd.gradcheck(block_windows, (*inputs, 2))


@pytest.mark.parametrize(("width", "stride", "channels"), [(15, 7, 64), (14, 7, 64), (7, 7, 3), (3, 1, 4), (6, 4, 2)])
def test_windows_in_float32_are_those_of_float64(width, stride, channels):
    """Values and all gradients, whichever kernels float32 takes, up to rounding; other data are told apart."""
    torch.manual_seed(0)
    inputs = [torch.randn(size) for size in ((40, stride * channels), (width * channels, 128), (128,))]
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [value.to(dtype, copy=True).requires_grad_() for value in inputs]
        found = block_windows(*leaves, channels)
        weights = torch.arange(found.numel(), dtype=dtype).view(found.shape).sin()
        (found * weights).sum().backward()
        results.append([found.detach().double(), *(leaf.grad.double() for leaf in leaves)])
    for ours, exact in zip(*results, strict=True):
        assert torch.allclose(ours, exact, rtol=1e-3, atol=1e-3)
        assert not torch.allclose(ours.roll(1, dims=0), exact, rtol=1e-3, atol=1e-3)


def test_rows_have_the_bits_of_torch_s_embedding():
    """Values and gradients, pads without one, bit for bit: the option changes nothing."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 300, (5000,)) % torch.randint(1, 300, (5000,))
    weight = torch.randn(300, 64)
    gradient = torch.randn(5000, 64)
    results = []
    for look_up in (embed_rows, lambda t, w, p: F.embedding(t, w, padding_idx=p)):
        table = weight.clone().requires_grad_()
        found = look_up(tokens, table, 0)
        found.backward(gradient)
        results.append((found.detach(), table.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert not results[0][1][0].any()
    assert not torch.equal(results[0][1], torch.zeros(300, 64).index_add_(0, tokens, gradient)), (
        "the pad got a gradient"
    )


@pytest.mark.parametrize(
    ("channels", "size", "shape"), [(1, 3, (7, 7)), (3, 3, (5, 9)), (2, 5, (6, 4)), (1, 1, (3, 8))]
)
def test_patches_are_a_convolution(channels, size, shape):
    """Values and all gradients of nn.functional.conv2d with `same` padding, up to rounding."""
    torch.manual_seed(0)
    inputs = [
        torch.randn(size, dtype=torch.float64) for size in ((4, channels, *shape), (6, channels, size, size), (6,))
    ]
    gradient = torch.randn(4, 6, *shape, dtype=torch.float64)
    results = []
    for convolve in (patch_conv, lambda images, weight, bias: F.conv2d(images, weight, bias, padding="same")):
        leaves = [value.clone().requires_grad_() for value in inputs]
        found = convolve(*leaves)
        found.backward(gradient)
        results.append([found.detach(), *(leaf.grad for leaf in leaves)])
    assert all(torch.allclose(ours, theirs) for ours, theirs in zip(*results, strict=True))
    shifted = F.conv2d(inputs[0].roll(1, dims=2), *inputs[1:], padding="same")
    assert not torch.allclose(results[0][0], shifted), "the comparison cannot tell a shifted image"


def test_patches_leave_channels_together():
    """The layout that pooling and the next convolution are quickest with, also for channels-last weights."""
    weight = torch.randn(4, 1, 3, 3).contiguous(memory_format=torch.channels_last)
    images = torch.randn(2, 1, 6, 6)
    found = patch_conv(images, weight, None)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, patch_conv(images, weight, torch.zeros(4)))


@pytest.mark.parametrize("rate", [0.25, 0.4, 0.5, 0.999])
def test_dropout_drops_its_share_and_keeps_the_mean(rate):
    """A share within five standard deviations, one factor for all that stays, the same mask in the gradient."""
    torch.manual_seed(0)
    values = torch.rand(400, 1003) + 1
    leaf = values.clone().requires_grad_()
    found = drop(leaf, rate, training=True)
    found.sum().backward()
    is_kept = found.detach() != 0
    exact = min(round(rate * 256), 255) / 256
    spread = (exact * (1 - exact) / values.numel()) ** 0.5
    assert abs(1 - float(is_kept.double().mean()) - exact) < 5 * spread
    assert torch.allclose(found.detach()[is_kept], values[is_kept] / (1 - exact))
    assert torch.equal(leaf.grad, is_kept / (1 - exact))
    for other in (
        is_kept[1:] == is_kept[:-1],
        is_kept[:, 8:] == is_kept[:, :-8],
    ):  # neighbours know nothing of each other
        assert abs(float(other.double().mean()) - (exact**2 + (1 - exact) ** 2)) < 10 * spread + 1e-4


def test_dropout_is_drawn_from_the_generator_and_only_in_training():
    """The same state, the same mask; another state, another one; nothing in evaluation or at rate 0."""
    values, masks = torch.ones(1000), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(drop(values, 0.5, training=True))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    assert drop(values, 0.5, training=False) is values
    assert drop(values, 0.0, training=True) is values
