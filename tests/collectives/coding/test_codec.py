"""The codec for gradients between hosts: every bit comes back, fewer bytes go, and what is no message is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.collectives.coding import codec
from unisono.collectives.coding.codec import Measured, decode, encode, pick, room
from unisono.errors import RankDivergence

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
OTHERS = (torch.int32, torch.uint8, torch.bool, torch.complex64, torch.int64)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def message_of(piece):
    return encode(piece, torch.full((room(piece),), 0xAB, dtype=torch.uint8))


def back(message, piece):
    """Decode into a tensor that held something else, with more bytes behind the message."""
    out = torch.full_like(piece, 1)
    longer = torch.cat([message, torch.full((room(piece) - len(message),), 0xCD, dtype=torch.uint8)])
    assert decode(longer, out) == len(message)
    return out


def same_bits(left, right):
    return left.dtype == right.dtype and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def gradients(count, dtype, zeros=0.0, seed=0):
    """Return numbers of many sizes, some of them zero."""
    rng = np.random.default_rng(seed)
    values = np.where(rng.random(count) >= zeros, rng.standard_normal(count) * 1e-3, 0.0)
    return torch.from_numpy(values).to(dtype)


@st.composite
def pieces(draw):
    """Any bits: NaN with any payload, both zeros, infinities, denormal numbers, runs of one number, nothing at all."""
    dtype = draw(st.sampled_from(FLOATS + OTHERS))
    width = torch.empty(0, dtype=dtype).element_size()
    count = draw(st.sampled_from([0, 1, 7, 8, 9, 255, 1024, 5001]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    data = rng.integers(0, 256, count * width, dtype=np.uint8)
    if dtype == torch.bool:
        data &= 1
    few = draw(st.lists(st.binary(min_size=width, max_size=width), min_size=1, max_size=6))
    rows = data.reshape(count, width)
    share = draw(st.sampled_from([0.0, 0.05, 0.3, 0.97, 1.0]))
    chosen = rng.random(count) < share
    if count and dtype != torch.bool:
        known = np.array([list(word) for word in [*few, bytes(width)]], dtype=np.uint8)
        rows[chosen] = known[rng.integers(0, len(known), int(chosen.sum()))]
    return torch.from_numpy(data).view(dtype) if count else torch.empty(0, dtype=dtype)


@given(pieces())
@settings(max_examples=120, deadline=None)
def test_every_bit_comes_back(piece):
    """Whatever the bits and the type; a message is never longer than its room."""
    message = message_of(piece)
    assert len(message) <= room(piece)
    assert same_bits(back(message, piece), piece)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("zeros", [0.0, 0.2, 0.9, 1.0])
def test_special_numbers_among_gradients(dtype, zeros):
    """NaN, infinity, -0.0 and denormal numbers keep their bits in messages that are coded."""
    piece = gradients(4096, dtype, zeros)
    tiny = torch.finfo(dtype).smallest_normal / 4
    piece[[3, 500, 501, 1000, 4095]] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, tiny], dtype=dtype)
    message = message_of(piece)
    assert message[4] == codec._PLANES
    assert same_bits(back(message, piece), piece)


@pytest.mark.parametrize(("dtype", "ratio"), [(torch.float32, 1.17), (torch.bfloat16, 1.4), (torch.float64, 1.08)])
def test_fewer_bytes(dtype, ratio):
    """Gradients without a zero; with zeros far fewer."""
    plain, sparse = (message_of(gradients(1 << 15, dtype, zeros)) for zeros in (0.0, 0.75))
    raw = (1 << 15) * torch.empty(0, dtype=dtype).element_size()
    assert raw / len(plain) > ratio
    assert raw / len(sparse) > 2.5 * ratio


def test_what_would_be_longer_goes_as_it_is():
    """Random bits: one header more."""
    piece = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 40_000, dtype=np.uint8)).view(torch.float32)
    message = message_of(piece)
    assert message[4] == codec._RAW
    assert len(message) == room(piece)


@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_damage_is_refused_or_changes_numbers_only(zeros):
    """Any byte changed, any end cut off: the error, or numbers in `out` and not a byte beside it."""
    piece = gradients(600, torch.float32, zeros)
    message, rng = message_of(piece), np.random.default_rng(0)
    refused = 0
    frame = torch.full((620,), 7.0)
    for at in [*range(64), *rng.integers(0, len(message), 200), *range(len(message) - 40, len(message))]:
        damaged = message.clone()
        damaged[at] ^= int(rng.integers(1, 256))
        for given_bytes in (damaged, message[:at]):
            try:
                decode(given_bytes, frame[10:610])
            except RankDivergence as error:
                assert "expected" in str(error) and "Hint: " in str(error)
                refused += 1
            assert (frame[:10] == 7).all() and (frame[610:] == 7).all()
    assert refused > 300


def test_lengths_of_an_enemy_are_refused():
    """Numbers in a header that point outside, or promise more than fits."""
    piece = gradients(600, torch.float32, 0.5)
    message = message_of(piece)
    fields = codec._HEADER.unpack_from(message.numpy())
    for index in range(3, len(fields)):
        for value in (0, 1, fields[index] - 1, fields[index] + 1, 1 << 32, (1 << 64) - 1):
            told = [*fields]
            told[index] = value
            hostile = message.clone()
            codec._HEADER.pack_into(hostile.numpy(), 0, *told)
            with pytest.raises(RankDivergence, match="expected"):
                decode(hostile, torch.empty_like(piece))


def test_a_bomb_is_refused():
    """Packed bytes that would grow beyond the numbers asked for."""
    piece = torch.ones(600)
    bomb = codec._deflate(np.zeros(1 << 20, np.uint8), 0)
    hostile = torch.zeros(8192, dtype=torch.uint8)
    codec._HEADER.pack_into(hostile.numpy(), 0, b"UPL1", codec._PLANES, 4, 600, 600, 0, len(bomb))
    hostile[codec._HEADER.size + 1800 :][: len(bomb)] = torch.frombuffer(bytearray(bomb), dtype=torch.uint8)
    with pytest.raises(RankDivergence, match=r"600 packed bytes in .*found 601"):
        decode(hostile, piece)


@pytest.mark.parametrize(("count", "dtype"), [(599, torch.float32), (600, torch.float64), (300, torch.float64)])
def test_another_size_or_type_is_refused(count, dtype):
    """A message for other numbers than those expected."""
    with pytest.raises(RankDivergence, match="numbers of"):
        decode(message_of(gradients(600, torch.float32)), torch.empty(count, dtype=dtype))


@pytest.mark.parametrize(
    ("megabits", "computing", "expected"),
    [(200, 0.0, "planes"), (1000, 0.0, "planes"), (10_000, 0.0, "none"), (200, 60e-9, "none"), (1000, 6e-9, "none")],
)
def test_pick(megabits, computing, expected):
    """The codec is for links that are slower than the codec, in steps that wait for them."""
    speed = {"encoded": 5e8, "decoded": 9e8, "computing": computing}
    assert pick(Measured(link=megabits * 1e6 / 8, ratio=1.18, **speed)) == expected
    assert pick(Measured(link=megabits * 1e6 / 8, ratio=1.04, **speed)) == "none"
