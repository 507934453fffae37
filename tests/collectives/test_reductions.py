"""The operators, and the order in which they combine values."""

import pytest
import torch

from reference import bits, pairwise_sum, random_leaves
from unisono.collectives.reductions import REDUCTIONS, combine_values, is_defined
from unisono.collectives.tree import combine

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", range(1, 17))
def test_sum_is_that_of_the_canonical_tree(count, dtype):
    """For any number of values, SUM has the bits of `tree.combine` and of a sum written without a look at either."""
    values = random_leaves(count, [33], dtype, seed=count)
    out = torch.full((33,), 7.0, dtype=dtype)
    combine_values([value.clone() for value in values], "SUM", out)
    assert bits(out) == bits(combine({(i, i + 1): value for i, value in enumerate(values)}, count, torch.add))
    assert bits(out) == bits(pairwise_sum(values, torch.add))


def test_another_order_has_other_bits():
    """The control: a serial sum differs."""
    values = random_leaves(4, [100], torch.float32, seed=0)
    out = torch.empty(100)
    combine_values(values, "SUM", out)
    assert bits(out) != bits(((values[0] + values[1]) + values[2]) + values[3])


@pytest.mark.parametrize("count", [1, 3, 5])
def test_average_is_the_sum_divided_once(count):
    """AVG divides the finished sum; dividing the values would give other bits."""
    values = random_leaves(count, [200], torch.float32, seed=9)
    out = torch.empty(200)
    combine_values(values, "AVG", out)
    assert bits(out) == bits(pairwise_sum(values, torch.add) / count)
    assert (bits(out) == bits(pairwise_sum([value / count for value in values], torch.add))) == (count == 1)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_average_of_integers(dtype):
    """AVG of integers is their sum, divided toward zero: what NCCL gives, and Lightning makes of gloo's sum."""
    values = [torch.tensor([1, -7, 3, -1], dtype=dtype), torch.tensor([4, -6, 3, 0], dtype=dtype)]
    out = torch.empty(4, dtype=dtype)
    combine_values(values, "AVG", out)
    assert out.tolist() == [2, -6, 3, 0]
    total = values[0] + values[1]
    assert torch.equal(out, total.copy_(total / 2))


def test_average_of_large_integers():
    """The quotient is computed in integers: a float has 53 bits; and a sum that overflows wraps, as SUM does."""
    out = torch.empty(2, dtype=torch.int64)
    combine_values([torch.tensor([2**62 + 1, 2**62]), torch.tensor([1 - 2**61, 2**62])], "AVG", out)
    assert out.tolist() == [2**60 + 1, -(2**62)]


def test_values_are_not_changed():
    """The ranks' slots stay as they are: others may still read them."""
    values = random_leaves(5, [9], torch.float32, seed=2)
    copies = [value.clone() for value in values]
    for op in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"):
        combine_values(values, op, torch.empty(9))
    assert all(torch.equal(a, b) for a, b in zip(values, copies, strict=True))


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_the_result_may_replace_a_value(count):
    """Whichever of the values is overwritten, the bits are the same."""
    for index in range(count):
        values = random_leaves(count, [65], torch.float32, seed=count)
        expected = pairwise_sum(values, torch.add)
        combine_values(values, "SUM", values[index])
        assert bits(values[index]) == bits(expected)


def test_nan_wins():
    """A NaN of any rank is in the result of MIN and MAX, as in torch's own."""
    values = [torch.tensor([1.0]), torch.tensor([float("nan")]), torch.tensor([2.0])]
    for op in ("MIN", "MAX"):
        out = torch.zeros(1)
        combine_values(values, op, out)
        assert out.isnan().all()


@pytest.mark.parametrize(
    ("dtype", "missing"),
    [
        (torch.float32, {"BAND", "BOR", "BXOR"}),
        (torch.int64, set()),
        (torch.uint8, set()),
        (torch.bool, {"AVG"}),
        (torch.complex64, {"MIN", "MAX", "BAND", "BOR", "BXOR"}),
        (torch.float8_e5m2, set(REDUCTIONS)),
    ],
)
def test_what_is_defined(dtype, missing):
    """Each dtype knows the operators that make sense for it."""
    assert {op for op in REDUCTIONS if not is_defined(op, dtype)} == missing
    assert not is_defined("MEDIAN", dtype)
