"""Rounded gradients: what is kept, what is lost at most, and that neither cuts nor who rounds can be seen."""

import hashlib
import math

import pytest
import torch

from reference import bits
from unisono.collectives.coding.rounding import BLOCK, ROUNDINGS, Bf16, Int8

NODE = (0, 2)
KINDS = pytest.mark.parametrize("rounding", [Bf16(seed=1, step=3), Int8(seed=1, step=3)], ids=ROUNDINGS)
PATTERNS = [0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF, 0xFFC12345]
"""NaN with several payloads and signs."""


def gradients(blocks=6000, seed=0):
    """Return blocks of numbers of all sizes that float32 has, some zero, some blocks all zero."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.empty(blocks, 1).uniform_(-149, 126, generator=generator).exp2()
    values = torch.randn(blocks, BLOCK, generator=generator) * sizes
    values[torch.rand(blocks, BLOCK, generator=generator) < 0.1] = 0.0
    values[::97] = -0.0
    return values.clamp_(-3e38, 3e38).view(-1)


def rounded(rounding, values, node=NODE):
    return rounding.round_(node, values.clone())


def sent(rounding, values):
    """Return what arrives, and the bytes of the message."""
    message = rounding.encode(values, torch.full((rounding.room(values) + 5,), 0xAB, dtype=torch.uint8))
    assert len(message) == rounding.room(values)
    return rounding.decode(message, torch.full_like(values, 7)), len(message)


@KINDS
def test_what_is_rounded_stays(rounding):
    """Rounding again, as another node of another step, changes no bit; a message neither."""
    once = rounded(rounding, gradients())
    assert bits(rounded(rounding.at_step(9).at(160), once, (4, 8))) == bits(once)
    arrived, _ = sent(rounding, once)
    assert bits(arrived) == bits(once) != bits(gradients())


@pytest.mark.parametrize(("kind", "count"), [("bf16", 2 * 1600), ("int8", 1600 + 100)])
def test_bytes(kind, count):
    """Two bytes a number, or one and a sixteenth."""
    rounding = ROUNDINGS[kind]()
    assert sent(rounding, rounded(rounding, gradients(100)))[1] == count


def test_how_much_is_lost():
    """bf16: half of the last of 8 bits, ties to even; int8: less than a unit; the block's largest has 64 to 127."""
    values = gradients()
    normal = values.abs() >= 2.0**-126
    assert ((rounded(Bf16(), values) - values).abs()[normal] <= values.abs()[normal] * 2.0**-8).all()
    assert rounded(Bf16(), torch.tensor([1 + 2**-8, 1 + 3 * 2**-8] * 8))[:2].tolist() == [1.0, 1 + 2**-6]
    lost = (rounded(Int8(), values) - values).view(-1, BLOCK).abs().amax(1)
    largest = values.view(-1, BLOCK).abs().amax(1)
    assert (lost < (largest / 63.5).clamp(min=2.0**-120)).all()
    assert (rounded(Int8(), values).view(-1, BLOCK).abs().amax(1) <= largest * 64.5 / 63.5 + 2.0**-120).all()


def test_int8_keeps_the_mean():
    """What a step rounds up others round down; the nearest number would be the same in each step."""
    values = torch.cat([torch.tensor([1.0]), torch.full((15,), 0.3 / 64)])
    steps = [rounded(Int8(step=step), values) for step in range(4000)]
    assert torch.stack(steps).double().mean(0)[1:].mean().item() == pytest.approx(0.3 / 64, rel=0.02)
    assert {step[1].item() for step in steps} == {0.0, 1 / 64}


@KINDS
@pytest.mark.parametrize("length", [BLOCK, 5 * BLOCK, 4096 + BLOCK])
def test_cuts_change_no_bit(rounding, length):
    """Pieces that know where they begin get what the whole gets, NaN included."""
    values = gradients()
    values.view(torch.int32)[: BLOCK * 300 : 7] = torch.tensor(PATTERNS[1])
    pieces = [rounded(rounding.at(start), piece) for start, piece in zip(
        range(0, len(values), length), values.split(length), strict=True)]  # fmt: skip
    assert bits(torch.cat(pieces)) == bits(rounded(rounding, values))


def test_chance_is_keyed():
    """int8: another seed, step, node or place draws other numbers, and no two draw what a shift of them would."""
    values = torch.full((64 * BLOCK,), 0.3)
    values[::BLOCK] = 1.0
    drawn = [
        rounded(Int8(seed=seed, step=step, first=first), values, node)
        for seed, step, first, node in [
            (0, 1, 0, (0, 1)), (1, 1, 0, (0, 1)), (0, 2, 0, (0, 1)), (0, 1, 16, (0, 1)), (0, 1, 0, (1, 2)),
            (0, 1, 0, (0, 2)),
        ]
    ]  # fmt: skip
    assert len({bits(one) for one in drawn}) == len(drawn)
    assert bits(drawn[0][BLOCK:]) == bits(drawn[3][:-BLOCK])  # a place's chance is its own


@KINDS
def test_signs_of_zero(rounding):
    """bf16 keeps the sign of a zero; int8 has one zero, the positive one, in sums as in messages."""
    found = rounded(rounding, torch.tensor([-0.0, 0.0] * 7 + [1.0, -1e-9]))
    signs = [math.copysign(1, value) for value in found[:2].tolist()]
    assert signs == ([-1, 1] if isinstance(rounding, Bf16) else [1, 1])
    assert bits(sent(rounding, found)[0]) == bits(found)


@KINDS
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3.4e38, *PATTERNS])
def test_what_is_not_finite_stays_so(rounding, bad):
    """NaN and infinity are seen after rounding and on the other side, with the same bits; their neighbours are kept."""
    values = gradients(4)
    values[20] = bad if isinstance(bad, float) else 0.0
    if isinstance(bad, int):
        values.view(torch.int32)[20] = bad - (bad >> 31 << 32)
    found = rounded(rounding, values)
    assert not found[20].isfinite()  # 3.4e38 is more than either form can hold
    assert bits(sent(rounding, found)[0]) == bits(found)
    clean = values.clone()
    clean[20] = 0.0
    expected, lost = rounded(rounding, clean), slice(BLOCK, 2 * BLOCK) if isinstance(rounding, Int8) else slice(20, 21)
    assert bits(torch.cat([found[: lost.start], found[lost.stop :]])) == bits(
        torch.cat([expected[: lost.start], expected[lost.stop :]])
    )
    if not isinstance(bad, float):
        assert bits(found[20]) == bits(torch.tensor(math.nan))


def test_the_numbers_are_known():
    """A NumPy or torch that draws or rounds otherwise would end the promise for runs that resume: it is seen here."""
    values = torch.randn(1 << 12, generator=torch.Generator().manual_seed(0))
    digests = [hashlib.sha256(bits(rounded(kind(seed=5, step=7), values, (2, 4)))).hexdigest()[:16]
               for kind in ROUNDINGS.values()]  # fmt: skip
    assert digests == ["8902891ec9338341", "5a391b61bcc7af86"]
