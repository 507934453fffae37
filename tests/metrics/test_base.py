"""Metrics are exact sums: any order, any grouping, the same bits."""

import functools
import math
import operator
import random
from collections import UserDict
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import top_k_accuracy_score
from torch.nn.utils.rnn import pack_sequence

import unisono.metrics
from metrics.shards import same_everywhere
from unisono.errors import ConfigError
from unisono.metrics.base import Accuracy, ExactSum, Mean

finite = st.floats(-1e300, 1e300)
many = st.lists(finite, max_size=30)


def exact(values) -> ExactSum:
    total = ExactSum()
    for value in values:
        total.add(value)
    return total


@given(many)
def test_the_sum_is_exact(values):
    """It equals the sum of fractions, rounded once at the end; subnormal numbers and cancellation included."""
    wanted = sum(map(Fraction, values), Fraction(0))
    assert Fraction(exact(values).units, 1 << 1074) == wanted
    assert float(exact(values)) == float(wanted)


def test_the_sum_is_exact_where_floats_are_not():
    """The control: ordinary addition loses what the exact sum keeps."""
    values = [1e100, 1.0, -1e100, 5e-324]
    assert functools.reduce(operator.add, values) != 1.0
    assert float(exact(values)) == 1.0
    assert float(exact([5e-324] * 3)) == 1.5e-323
    assert float(exact([0.1] * 10)) == 1.0 != functools.reduce(operator.add, [0.1] * 10)


@given(many, st.randoms(use_true_random=False), st.integers(0, 30))
def test_the_sum_depends_on_no_order_and_no_grouping(values, chance, place):
    """Shuffled, and added up in two shards: the same whole number."""
    shuffled = values[:]
    chance.shuffle(shuffled)
    left, right = exact(shuffled[:place]), exact(shuffled[place:])
    assert left.units + right.units == exact(values).units
    assert ExactSum(left.units + right.units).units == exact(values).units


@pytest.mark.parametrize(
    ("value", "error"), [(math.nan, ValueError), (math.inf, OverflowError), (-math.inf, OverflowError)]
)
def test_values_that_are_not_finite_raise(value, error):
    """NaN and infinity cannot hide in a sum, and leave it unchanged."""
    total = exact([1.5])
    with pytest.raises(error):
        total.add(value)
    assert float(total) == 1.5


def test_accuracy_counts_hits():
    """The share of samples whose largest score is the target's."""
    accuracy = Accuracy()
    assert accuracy.compute() == 0.0
    accuracy.update(torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([1, 1, 1]))
    assert accuracy.state == [2, 3]
    assert accuracy.compute() == 2 / 3


@pytest.mark.parametrize("num_classes", [2, 3, 17, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_ties_count_for_the_lowest_class(num_classes, dtype):
    """Equal scores are decided the same way everywhere."""
    scores = torch.zeros(4, num_classes, dtype=dtype)
    accuracy = Accuracy()
    accuracy.update(scores, torch.tensor([0, 0, 1, num_classes - 1]))
    assert accuracy.state == [2, 4]
    scores[:, 1:] = 3
    accuracy.reset()
    accuracy.update(scores, torch.tensor([1, 1, 0, 0]))
    assert accuracy.state == [2, 4]


@pytest.mark.parametrize(
    ("outputs", "targets"), [((3,), (3,)), ((3, 2), (3, 1)), ((3, 2), (2,)), ((3, 2, 1), (3,)), ((3, 2), ())]
)
def test_accuracy_refuses_other_shapes(outputs, targets):
    """Broadcasting would count something else: wrong shapes are an error that shows them."""
    with pytest.raises(ConfigError, match="Accuracy expects"):
        Accuracy().update(torch.zeros(outputs), torch.zeros(targets, dtype=torch.int64))


@pytest.mark.parametrize(
    ("output", "target", "hint"),
    [
        (torch.zeros(3, 2).argmax(1), torch.zeros(3), r"without argmax\(\)"),
        (torch.zeros(3, 2), torch.zeros(3, 2), r"target\.argmax\(1\)"),
        (torch.zeros(3), torch.zeros(3, 2), "outputs first"),
        (torch.zeros(3), torch.zeros(3), r"\(3,\)\.$"),
        (torch.zeros(3, 2), torch.zeros(2), r"\(2,\)\.$"),
    ],
)  # fmt: skip
def test_what_accuracy_refuses_says_the_usual_cause(output, target, hint):
    with pytest.raises(ConfigError, match=hint):
        Accuracy().update(output, target)


@pytest.mark.parametrize("top_k", [1, 2, 3, 5])
def test_top_k_is_scikit_learns_on_any_world(top_k):
    """The target is among the k largest scores: the same count on one to four ranks."""
    generator = torch.Generator().manual_seed(0)
    scores, targets = torch.randn(91, 6, generator=generator), torch.arange(91) % 6
    ours = same_everywhere(lambda: Accuracy(top_k), scores, targets)
    assert ours == top_k_accuracy_score(targets, scores, k=top_k)


@pytest.mark.parametrize("top_k", [2, 3])
def test_ties_at_the_border_count_for_the_lowest_classes(top_k):
    """With all scores equal the first k classes are the k largest."""
    accuracy = Accuracy(top_k)
    accuracy.update(torch.zeros(5, 5), torch.arange(5))
    assert accuracy.state == [top_k, 5]


@pytest.mark.parametrize("top_k", [1, 2])
def test_nan_is_no_hit(top_k):
    """A row with NaN is a miss, whichever class the NaN stands at."""
    accuracy = Accuracy(top_k)
    accuracy.update(torch.tensor([[math.nan, 1.0], [1.0, math.nan], [1.0, 0.0]]), torch.tensor([0, 0, 0]))
    assert accuracy.state == [1, 3]


def test_accuracy_of_tokens_leaves_padding_out():
    """Scores (n, classes, length) and targets (n, length): each token is a sample, ignored ones are not."""
    accuracy = Accuracy(ignore_index=-100)
    scores = torch.tensor([[[0.9, 0.1, 0.9], [0.1, 0.9, 0.1]]])
    accuracy.update(scores, torch.tensor([[0, 0, -100]]))
    assert accuracy.state == [1, 2]


def test_targets_that_are_no_class_are_refused():
    """A target outside the classes is a mistake in the data, not a miss."""
    with pytest.raises(ConfigError, match=r"targets in 0..2, got -1..1"):
        Accuracy().update(torch.zeros(2, 3), torch.tensor([1, -1]))
    with pytest.raises(ConfigError, match="top_k >= 1"):
        Accuracy(0)


def test_targets_in_dictionaries_are_counted_by_sample():
    """A dictionary has as many samples as each of its values, a packed sequence as it has sequences."""
    mean = Mean()
    mean.update(torch.tensor(2.0), UserDict(a=torch.zeros(3), b=torch.zeros(3, 5), c=torch.tensor(1.0), d=[1, 2, 3]))
    mean.update(torch.tensor(6.0), pack_sequence([torch.zeros(2)]))
    assert mean.compute() == 3.0
    with pytest.raises(ConfigError, match=r"values have one length, that of the micro-batch, got \[2, 3\] in a, b"):
        mean.update(torch.tensor(2.0), {"a": torch.zeros(3), "b": torch.zeros(2)})


def test_mean_weighs_a_mean_by_its_samples():
    """One element stands for the mean of all samples of a micro-batch: never an average of averages."""
    mean = Mean()
    assert mean.compute() == 0.0
    mean.update(torch.tensor(2.0), torch.zeros(3))
    mean.update(torch.tensor([6.0]), torch.zeros(1))
    assert mean.compute() == 3.0
    mean.update(torch.tensor([1.0, 2.0, 6.0, 7.0]), torch.zeros(4))
    assert mean.compute() == 28 / 8


@pytest.mark.parametrize(("values", "targets"), [((3,), (5,)), ((4, 2), (4,)), ((5,), (3,)), ((0,), (2,))])
def test_mean_refuses_other_shapes(values, targets):
    """Values that are neither one per sample nor one for all are an error, not a wrong mean."""
    with pytest.raises(ConfigError):
        Mean().update(torch.ones(values), torch.zeros(targets))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_mean_of_values_that_are_not_finite_is_nan(value):
    """A NaN loss is not averaged away, and does not stop one rank while the others wait."""
    for values in (torch.tensor([1.0, value]), torch.tensor(value)):
        mean, other = Mean(), Mean()
        mean.update(values, torch.zeros(2))
        other.update(torch.tensor([1.0]), torch.zeros(1))
        other.merge(mean.state)
        assert math.isnan(other.compute())


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40), st.integers(0, 10**6))
def test_shards_merge_to_the_same_bits_in_any_grouping(values, seed):
    """However the samples are dealt out and however the shards are merged, the mean's bits are one."""
    whole = Mean()
    whole.update(torch.tensor(values).view(-1, 1).squeeze(1), torch.zeros(len(values)))
    chance = random.Random(seed)
    shards: dict[int, Mean] = {}
    for value in chance.sample(values, len(values)):
        shards.setdefault(chance.randrange(5), Mean()).update(torch.tensor([value]), torch.zeros(1))
    merged = Mean()
    for shard in chance.sample(list(shards.values()), len(shards)):
        merged.merge(shard.state)
    assert merged.state == whole.state
    assert merged.compute().hex() == whole.compute().hex()


def test_average_of_averages_is_another_number():
    """The control: what is usually done with shards of unequal size is not the mean."""
    values = [0.1, 0.2, 0.7]
    shards = [values[:1], values[1:]]
    mean = Mean()
    mean.update(torch.tensor(values, dtype=torch.float64), torch.zeros(3))
    assert mean.compute() != sum(sum(shard) / len(shard) for shard in shards) / 2


def test_merge_refuses_another_metric_s_state():
    """Sums of different numbers of fields do not belong together."""
    with pytest.raises(ValueError, match="shorter"):
        Mean().merge([1])


def test_reset_forgets():
    """After reset a metric is new."""
    mean = Mean()
    mean.update(torch.tensor([4.0]), torch.zeros(1))
    mean.reset()
    assert mean.state == [0, 0, 0]


def test_who_looks_in_the_room():
    """Metrics are used by their names in `unisono`; whoever writes the room's name is told so."""
    with pytest.raises(AttributeError, match=r"no attribute 'Accuracy'. Hint: unisono.Accuracy"):
        unisono.metrics.Accuracy()
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        unisono.metrics.nothing()
