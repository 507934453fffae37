"""The reduce-scatter of fully sharded training: rounds, and sums in place."""

import pytest
import torch

from unisono.collectives.loopback import LoopbackTransport
from unisono.collectives.tree import accumulate, combine, push
from unisono.errors import StepError
from unisono.strategies.sharded.reduce import Rounds, TreeReduceScatter, add


@pytest.mark.parametrize("leaves", [1, 2, 3, 5, 8, 13])
def test_sums_in_place_are_those_of_the_tree(leaves):
    """Leaf by leaf, the same subtrees and bits as `tree.accumulate` of copies."""
    values = list(torch.randn(leaves, 50))
    sums = []
    for index, value in enumerate(values):
        push(sums, index, [value.clone()], leaves, add)
    expected = accumulate(0, values, leaves, torch.add)
    assert [node for node, _ in sums] == [node for node, _ in expected]
    total = combine(dict(sums), leaves, add)[0]
    assert torch.equal(total, combine(dict(expected), leaves, torch.add))
    assert add([], []) == []  # a model without buffers


def test_rounds_name_who_counts():
    """Ranks with fewer replicas take part in rounds that do not count; replicas without samples are nobody's."""
    rounds = Rounds([range(2), range(2, 3), range(3, 5)], 4)
    assert rounds.count == 2
    assert [rounds.replica_of(rank) for rank in range(3)] == [0, 2, 3]
    rounds.now = 1
    assert [rounds.replica_of(rank) for rank in range(3)] == [1, None, None]


def test_the_sum_comes_in_the_last_round():
    """Before it the output is -0.0, which changes no bit of what torch adds it to."""
    rounds = Rounds([range(3)], 3)
    scatter = TreeReduceScatter(LoopbackTransport(), lambda: rounds, "head")
    leaves, out = list(torch.randn(3, 8)), torch.empty(8)
    for number, leaf in enumerate(leaves):
        rounds.now = number
        scatter(out, leaf, None, None)
        if number < 2:
            assert torch.equal(out.view(torch.int32), torch.full((8,), -0.0).view(torch.int32))
    assert torch.equal(out, (leaves[0] + leaves[1]) + leaves[2])


def test_a_module_that_is_called_twice_is_refused():
    """Its two gradients would be reduced one by one, in an order that is not the tree's; the module is named."""
    rounds = [Rounds([range(1)], 1), Rounds([range(1)], 1)]
    scatter = TreeReduceScatter(LoopbackTransport(), lambda: rounds[0], "blocks.3")
    out = torch.empty(8)
    scatter(out, torch.ones(8), None, None)
    with pytest.raises(StepError, match=r"blocks\.3 is called more than once"):
        scatter(out, torch.ones(8), None, None)
    rounds.pop(0)  # the next step
    scatter(out, torch.ones(8), None, None)
