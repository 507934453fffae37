"""Flat buffers: every element has its place, unused places are neutral, checksums see every bit."""

import pytest
import torch

from reference import bits
from unisono.determinism.switches import checksum
from unisono.strategies.parts.flat import Layout, padding_checksum, slice_of_words


def tensors():
    """Shapes that fill nothing evenly, in two dtypes, one of them channels_last."""
    return [
        torch.randn(3, 5),
        torch.randn(7, dtype=torch.float64),
        torch.tensor(2.5),
        torch.randn(0, 4),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(9, dtype=torch.float64),
        torch.randn(6, 4).t(),
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_views_hold_the_tensors(world_size):
    """What is copied into the views is there again, in its own shape and strides, and no view overlaps another."""
    likes = tensors()
    buffer = Layout(likes, [], world_size).new_buffer()
    for view, like in zip(buffer.views, likes, strict=True):
        assert (view.shape, view.stride(), view.dtype) == (like.shape, like.stride(), like.dtype)
        view.copy_(like)
    assert all(torch.equal(view, like) for view, like in zip(buffer.views, likes, strict=True))
    assert [flat.dtype for flat in buffer.flats] == [torch.float32, torch.float64]
    assert all(flat.numel() % world_size == 0 for flat in buffer.flats)


def test_overlapping_strides_get_a_plain_view():
    """A tensor whose strides do not fill its segment (an expanded one) is laid out in plain order."""
    like = torch.randn(3, 1).expand(3, 4)
    view = Layout([like], [], 1).new_buffer().views[0]
    assert view.is_contiguous()
    assert view.copy_(like).equal(like)


def test_a_fresh_buffer_is_neutral():
    """Adding a fresh buffer changes no bit, not even the sign of a zero; adding zeros would."""
    layout = Layout(tensors(), [], 2)
    buffer, fresh, zeros = layout.new_buffer(), layout.new_buffer(), layout.new_buffer()
    buffer.views[0].copy_(torch.randn(3, 5))
    before = [bits(flat) for flat in buffer.flats]
    assert [bits(flat) for flat in buffer.add_(fresh).flats] == before
    for flat in zeros.flats:
        flat.zero_()
    assert [bits(flat) for flat in buffer.add_(zeros).flats] != before


def test_the_checksum_does_not_know_the_world():
    """Padding depends on the world size, the checksum does not; one flipped bit changes it."""
    likes, sums = tensors(), set()
    for world_size in (1, 2, 3, 7):
        buffer = Layout(likes, [], world_size).new_buffer()
        for view, like in zip(buffer.views, likes, strict=True):
            view.copy_(like)
        sums.add(buffer.checksum())
    assert len(sums) == 1
    assert 0 <= buffer.checksum() < 2**64
    buffer.views[2].view(torch.int32).bitwise_xor_(1)
    assert buffer.checksum() not in sums


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_found(bad):
    """One NaN or infinity anywhere is found; large numbers whose sum overflows are not mistaken for it."""
    buffer = Layout(tensors(), [], 2).new_buffer()
    assert buffer.is_finite()
    buffer.views[0].fill_(3e38)
    assert not torch.isfinite(buffer.views[0].sum())
    assert buffer.is_finite()
    buffer.views[5][-1] = bad
    assert not buffer.is_finite()


def test_what_covers_some_gradients_holds_them_and_no_other():
    """Neighbours lie in one piece; in it NaN is found in every element of those that are asked for, and no other's."""
    sizes = [16, 3, 0, 40, 17, 1, 16]
    buffer = Layout([torch.randn(size) for size in sizes], [torch.randn(5)], 2).new_buffer()
    for asked, count in (((0, 1, 2, 4, 5), 2), ((1, 3, 6), 2), ((3,), 1), (tuple(range(7)), 1), ((), 0)):
        pieces = buffer.covering(asked)
        assert len(pieces) == count
        assert buffer.covering(tuple(asked)) is pieces
        for index, view in enumerate(buffer.gradients):
            for place in range(len(view)):
                view[place] = torch.nan
                assert any(piece.isnan().any() for piece in pieces) == (index in asked)
                view[place] = 0
        buffer.buffers[0].fill_(torch.nan)
        assert not any(piece.isnan().any() for piece in pieces)
    mixed = Layout(tensors(), [], 2).new_buffer()
    assert [piece.dtype for piece in mixed.covering((0, 1, 2))] == [torch.float32, torch.float64, torch.float32]


def test_no_tensors():
    """A layout of nothing has buffers of nothing."""
    buffer = Layout([], [], 3).new_buffer()
    assert (buffer.flats, buffer.views, buffer.checksum(), buffer.is_finite()) == ([], [], 0, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_checksums_of_slices_add_up_to_that_of_the_whole(dtype, count):
    """Wherever the cuts fall; and with the unused places, to that of a flat buffer."""
    whole = torch.randn(37, dtype=dtype)
    parts, start, total = whole.tensor_split(count), 0, 0
    for part in parts:
        total += checksum([slice_of_words(part.clone(), start)])
        start += len(part)
    assert total % 2**64 == checksum([whole])
    buffer = Layout([whole], [], 1).new_buffer()
    buffer.views[0].copy_(whole)
    assert (total + padding_checksum([whole])) % 2**64 == buffer.checksum()
    if count > 1 and dtype == torch.float32:
        assert sum(checksum([part.clone()]) for part in parts) % 2**64 != checksum([whole])  # the control
