"""Easy samples first: which samples an epoch is made of, at any place by its number."""

from collections import Counter

import numpy as np
import pytest

from unisono.data.plans.curriculum import Curriculum
from unisono.data.plans.plan import HasEpochs, Order, Plan
from unisono.data.sampler import ExactSampler
from unisono.errors import ConfigError, DataError

HARD = [5, 1, 4, 2, 3, 9, 8, 7, 6, 0]


def test_each_epoch_has_the_easiest_share():
    """Equally often, to one; with all of them, each once; every place by itself."""
    plan = Curriculum(HARD, {0: 0.25, 2: 0.6, 3: 1.0})
    order = plan.order(HARD, seed=1, shuffle=True)
    assert isinstance(order, Order)
    assert isinstance(order, HasEpochs)
    assert isinstance(plan, Plan)
    for epoch, easiest in (
        (0, {9, 1, 3}),
        (1, {9, 1, 3}),
        (2, {9, 1, 3, 4, 2, 0}),
        (3, set(range(10))),
        (99, set(range(10))),
    ):
        found = order.at(epoch, 0, 10)
        counts = Counter(found.tolist())
        assert set(counts) == easiest
        assert max(counts.values()) - min(counts.values()) <= 1
        assert [order.at(epoch, place, place + 1)[0] for place in range(10)] == found.tolist()
    assert order.at(0, 0, 10).tolist() != order.at(1, 0, 10).tolist()
    assert order.epochs_at(2, 3, 5).tolist() == [23, 24]


def test_in_order_of_difficulty():
    """Without shuffling, each pass goes from easy to hard."""
    order = Curriculum(HARD, {0: 0.5}, num_samples=7).order(HARD, seed=1, shuffle=False)
    sampler = ExactSampler(order.num_samples, 4, order=order)
    assert np.concatenate([sampler.batch(step) for step in (1, 2, 3)]).tolist() == [9, 1, 3, 4, 2, 9, 1, 9, 1, 3, 4]


def test_the_score_tells_curricula_apart():
    """By difficulties and shares."""
    tell = lambda hard, shares: Curriculum(hard, shares).order(hard, seed=0, shuffle=True).score  # noqa: E731
    told = tell(HARD, {0: 0.5, 3: 1.0})
    assert told == {**told, "order": "curriculum", "counts": [[0, 5], [3, 10]], "num_samples": 10}
    assert told not in (tell(HARD[::-1], {0: 0.5, 3: 1.0}), tell(HARD, {0: 0.5, 4: 1.0}), tell(HARD, {0: 0.4, 3: 1.0}))


@pytest.mark.parametrize(
    ("given", "said"),
    [((HARD, {1: 0.5}), r"from epoch 0 on, as in \{0: 0\.25"), ((HARD, 0.5), "from epoch 0 on"),
     ((HARD, {0: 0.0}), "a share as a number above 0"), ((HARD, {0: 1.5}), "a share"),
     ((HARD, {0: 1.0, 0.5: 1.0}), "epochs done"), (([float("nan")], {0: 1.0}), "got nan for sample 0"),
     (([[1]], {0: 1.0}), "expected difficulties as numbers")],
)  # fmt: skip
def test_bad_curricula(given, said):
    """Named, before the first step."""
    with pytest.raises((ConfigError, DataError), match=said):
        Curriculum(*given)
    with pytest.raises(DataError, match="expected 3 difficulties, one per sample, got 10"):
        Curriculum(HARD, {0: 1.0}).order(range(3), seed=0, shuffle=True)
