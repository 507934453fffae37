"""What a step's losses come to: pure numbers, the same wherever they are added."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import StepError
from unisono.strategies.base import Shares, sum_of
from unisono.strategies.objective import Objective
from unisono.strategies.parts.weighing import Weighed, read_weight, weigh

MEAN, SUM = Objective(len, len), Objective(len, len, "sum")
numbers = st.just(0.0) | st.floats(1e-6, 1e6)


@given(st.lists(st.tuples(numbers, st.floats(-1e6, 1e6)), min_size=1, max_size=9), st.integers(0, 5))
def test_the_weighted_mean(pairs, more):
    """As fractions have it, up to rounding; the factor is N / W; both reductions."""
    weights, losses = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    shares = Shares(len(pairs) + more, len(pairs))
    total = sum(map(Fraction, weights))
    mean, added = weigh(MEAN, shares, losses, weights), weigh(SUM, shares, losses, weights)
    if not total:
        assert mean.bad == added.bad == tuple(range(len(pairs)))
        assert (mean.total, mean.factor) == (0.0, 1.0)
        return
    exact = sum(Fraction(w) * Fraction(loss) for w, loss in pairs) / total
    size = float(sum(Fraction(w) * abs(Fraction(loss)) for w, loss in pairs) / total)
    assert abs(mean.loss - float(exact)) <= 1e-14 * size + 1e-290
    assert math.isclose(added.loss, math.fsum(losses) / float(total), rel_tol=1e-15, abs_tol=1e-300)
    assert (mean.total, mean.factor, mean.bad) == (float(total), shares.num_samples / float(total), ())


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), st.integers(0, 30))
def test_samples_as_weights_are_no_weights(losses, more):
    """To the bit, with a factor of exactly 1, which multiplies nothing."""
    shares = Shares(len(losses) + more, len(losses))
    usual = weigh(Objective(len), shares, losses, ())
    same = weigh(MEAN, shares, losses, [float(size) for size in shares.sizes])
    assert (usual.loss, usual.factor, usual.total) == (same.loss, same.factor, None)
    assert same.total == shares.num_samples
    for size in shares.sizes:
        assert MEAN.amount(size, shares.num_samples, float(size)) == Objective(len).amount(size, shares.num_samples, 0)


def test_what_is_no_weight():
    """Bad ones are named; a sum that is too large is everybody's; what counts nothing may be no number."""
    shares = Shares(3, 3)
    for bad in (-1.0, math.inf, -math.inf):
        assert weigh(MEAN, shares, [1.0] * 3, [1.0, bad, 0.0])[2:] == (bad, (1,))
    assert math.isnan(weigh(MEAN, shares, [1.0] * 3, [1.0, math.nan, -1.0]).total)
    assert weigh(SUM, shares, [1.0] * 3, [1e308] * 3)[2:] == (math.inf, (0, 1, 2))
    assert weigh(MEAN, shares, [math.nan, 2.0, 4.0], [0.0, 1.0, 1.0]) == Weighed(3.0, 1.5, 2.0)
    assert math.isnan(weigh(SUM, shares, [math.nan, 2.0, 4.0], [0.0, 1.0, 1.0]).loss)
    assert weigh(Objective(len, reduction="sum"), shares, [1.0, 2.0, 4.0], ()) == Weighed(7.0)


def test_sums_of_what_is_not_finite():
    """No exception of Python's: infinities that cancel are no number, what is too large is infinite."""
    assert math.isnan(sum_of([math.inf, -math.inf]))
    assert sum_of([1e308] * 3) == math.inf
    assert sum_of(iter([1e100, 1.0, -1e100])) == 1.0
    assert math.isnan(Shares(2, 2).mean([math.inf, -math.inf]))


def test_numbers_that_weights_may_be():
    """Python's, NumPy's and tensors of one element, exactly; nothing else."""
    for told in (3, 3.0, True + 2, torch.tensor(3), torch.tensor([[3.0]]), torch.tensor(3, dtype=torch.int8)):
        assert read_weight(told) == 3.0
    assert read_weight(torch.tensor(2**53 - 1)) == 2**53 - 1
    for told in (None, "many", [1, 2], torch.ones(2), torch.ones(0), 1j, 10**400):
        with pytest.raises(StepError, match="expected the weight of a micro-batch as one number"):
            read_weight(told)
