"""Ranks merge their metrics into one answer, or stop together when they hold different ones."""

import numpy as np
import pytest
import torch

from unisono.collectives.loopback import LoopbackTransport, run_ranks
from unisono.errors import ConfigError, RankDivergence
from unisono.metrics.base import Accuracy, Mean
from unisono.metrics.exchange import check_keys, merge_over_ranks, spread
from unisono.metrics.labels import Recall
from unisono.train.run_directory.adoption import compare_scores


def run(make, world_size=3):
    """Return the error text of every rank."""

    def program(transport):
        try:
            merge_over_ranks(make(transport.rank), transport)
        except RankDivergence as error:
            return str(error)
        return ""

    return run_ranks(program, world_size)


def test_other_names_stop_all_ranks_with_both_sets():
    """One message, the same on every rank, names both sets and what only one side holds."""
    texts = run(lambda rank: {"loss": Mean(), "auc" if rank == 2 else "accuracy": Accuracy()})
    assert len(set(texts)) == 1
    assert "rank 0 has {accuracy, loss}, rank 2 has {auc, loss}" in texts[0]
    assert "only rank 0: {accuracy}; only rank 2: {auc}" in texts[0]
    assert "Hint:" in texts[0]


def test_a_missing_name_stops_all_ranks():
    """A rank that logs less, or nothing, does not leave the others waiting or mixing."""
    texts = run(lambda rank: {} if rank == 1 else {"loss": Mean()})
    assert set(texts) == {texts[0]}
    assert "rank 0 has {loss}, rank 1 has {}" in texts[0]
    assert "(only rank 0: {loss})" in texts[0]


def test_other_kinds_under_one_name_stop_all_ranks():
    """Values of different metrics are never added, even under one name."""
    texts = run(lambda rank: {"score": Mean() if rank else Accuracy()})
    assert "{score (Accuracy)}, rank 1 has {score (Mean)}" in texts[0]


def test_metrics_on_one_rank_alone():
    """The others begin their loop: both calls are named, and no name of a metric."""

    def program(transport):
        if transport.rank:
            return compare_scores(transport, {"seed": 0})
        return merge_over_ranks({"loss": Mean()}, transport)

    with pytest.raises(RankDivergence, match=r"rank 0: run\.evaluate, .*; rank 1: run\.steps, its score\."):
        run_ranks(program, 2)


def test_another_order_of_names_is_no_difference():
    """What counts is the set; values go to their own names."""

    def program(transport):
        first, second = Mean(), Mean()
        first.update(torch.tensor([1.0]), torch.zeros(1))
        second.update(torch.tensor([2.0]), torch.zeros(1))
        pair = [("a", first), ("b", second)]
        return merge_over_ranks(dict(pair if transport.rank else reversed(pair)), transport)

    assert run_ranks(program, 2) == [{"a": 1.0, "b": 2.0}] * 2


def test_several_values_get_names_of_their_own():
    """A metric with parts is recorded as name/part."""
    recall = Recall(2, average="none", names=["no", "yes"])
    recall.update(torch.tensor([1, 1]), torch.tensor([1, 0]))
    assert merge_over_ranks({"recall": recall}, LoopbackTransport()) == {"recall/no": 0.0, "recall/yes": 1.0}
    assert spread("x", 2.0) == {"x": 2.0}


def test_equal_sets_pass():
    """The check is silent where all is well."""
    check_keys([["a", "b"], ["b", "a"]])
    check_keys([[]])
    with pytest.raises(RankDivergence):
        check_keys([["a"], ["a", "b"]])


def test_a_state_of_fractions():
    """It is refused with its name; whole numbers of NumPy's kind are not."""

    class Own(Mean):
        def __init__(self, value):
            self.state = [value, 1, 0]

    with pytest.raises(ConfigError, match=r"state of metric 'own', got 0\.5 \(float\).*Hint: unisono\.Mean\(\)"):
        merge_over_ranks({"own": Own(0.5)}, LoopbackTransport())
    merge_over_ranks({"own": Own(np.int64(3))}, LoopbackTransport())
