"""The fast operations compute what torch's own compute."""

import pytest
import torch
from torch.nn import functional as F

from unisono.recipes.kernels import block_windows, embed_rows


@pytest.mark.parametrize(("width", "stride"), [(15, 7), (14, 7), (7, 7), (3, 1), (5, 2), (6, 4)])
def test_windows_are_a_strided_convolution(width, stride):
    """Values of nn.functional.conv1d, for widths that are whole blocks and others, up to rounding."""
    rows, channels, out = 12 * stride, 3, 5
    x = torch.randn(rows, channels, dtype=torch.float64)
    weight, bias = torch.randn(width * channels, out, dtype=torch.float64), torch.randn(out, dtype=torch.float64)
    kernel = weight.view(width, channels, out).permute(2, 1, 0)
    expected = F.conv1d(x.t()[None], kernel, bias, stride=stride)[0].t()
    found = block_windows(x.reshape(12, -1), weight, bias)
    assert len(found) == 12 - -(-width // stride) + 1
    assert torch.allclose(found, expected[: len(found)])


def test_gradients_of_windows_are_right():
    """By finite differences."""
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((6, 14), (30, 4), (4,))]
    assert torch.autograd.gradcheck(block_windows, inputs)


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
