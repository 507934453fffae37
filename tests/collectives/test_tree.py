"""The canonical tree: its shape, who adds what, and how much is alive and shipped."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import bits, pairwise_sum, random_leaves
from unisono.collectives.placement import place_evenly
from unisono.collectives.tree import accumulate, are_siblings, combine, nodes, split


def spell(left, right):
    """Add as text: two sums are added in one order if and only if their texts are equal."""
    return f"({left}+{right})"


def in_two_stages(values, placement, leaves, add):
    """Add the leaves as ranks do: each its own range, then all partials."""
    partials = {}
    for hosted in placement:
        mine = [values[leaf] for leaf in hosted if leaf < leaves]
        partials |= dict(accumulate(hosted.start, iter(mine), leaves, add))
    return combine(partials, leaves, add)


def cuts(leaves, ranks):
    """Yield every way to give contiguous, non-empty ranges of leaves to the ranks."""
    for inner in itertools.combinations(range(1, leaves), ranks - 1):
        yield [range(a, b) for a, b in itertools.pairwise([0, *inner, leaves])]


@st.composite
def placements(draw):
    """Some replicas, cut into contiguous ranges at any places."""
    leaves = draw(st.integers(1, 33))
    inner = draw(st.sets(st.integers(1, leaves - 1))) if leaves > 1 else set()
    return [range(a, b) for a, b in itertools.pairwise([0, *sorted(inner), leaves])]


@given(
    placement=placements(),
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 2**20),
    absent=st.integers(0, 32),
)
@settings(max_examples=150, deadline=None)
def test_any_placement_gives_the_bits_of_the_tree(placement, shape, dtype, seed, absent):
    """Whoever adds, in whatever ranges, and with absent last leaves: the bits are those of the plain pairwise sum."""
    replicas = placement[-1].stop
    leaves = max(1, replicas - absent)
    values = random_leaves(replicas, shape, dtype, seed)
    total = in_two_stages([value.clone() for value in values], placement, leaves, torch.add)
    assert bits(total) == bits(pairwise_sum(values[:leaves], torch.add))


@given(placement=placements(), absent=st.integers(0, 32))
@settings(max_examples=300, deadline=None)
def test_any_placement_gives_the_expression_of_the_tree(placement, absent):
    """The order of addition itself, written out, is that of the plain pairwise sum."""
    leaves = max(1, placement[-1].stop - absent)
    names = [str(leaf) for leaf in range(placement[-1].stop)]
    assert in_two_stages(names, placement, leaves, spell) == pairwise_sum(names[:leaves], spell)


def test_every_placement_of_up_to_nine_replicas():
    """No placement of few replicas is an exception, with any number of absent leaves."""
    for replicas in range(1, 10):
        names = [str(leaf) for leaf in range(replicas)]
        for ranks in range(1, replicas + 1):
            for placement in cuts(replicas, ranks):
                for leaves in range(1, replicas + 1):
                    got = in_two_stages(names, placement, leaves, spell)
                    assert got == pairwise_sum(names[:leaves], spell), (placement, leaves)


def test_five_leaves():
    """The documented example holds literally."""
    assert combine({(leaf, leaf + 1): str(leaf) for leaf in range(5)}, 5, spell) == "(((0+1)+(2+3))+4)"


def test_a_subtree_and_its_last_addition():
    """One subtree can be asked for; `last` does the one addition at its root and no other."""
    leaves = {(leaf, leaf + 1): str(leaf) for leaf in range(7)}

    def last(left, right):
        return f"[{left} and {right}]"

    assert combine(leaves, 7, spell, last) == "[((0+1)+(2+3)) and ((4+5)+6)]"
    assert combine(leaves, 7, spell, last, root=(4, 7)) == "[(4+5) and 6]"
    assert combine(leaves, 7, spell, root=(0, 4)) == "((0+1)+(2+3))"


def test_the_check_can_fail():
    """Negative control: adding from left to right gives other bits, and another expression."""
    values = random_leaves(8, [64], torch.float32, seed=0)
    serial = values[0]
    for value in values[1:]:
        serial = serial + value
    assert bits(serial) != bits(pairwise_sum(values, torch.add))
    assert spell(spell("0", "1"), "2") == pairwise_sum(["0", "1", "2"], spell)  # three leaves are serial
    assert spell(spell(spell("0", "1"), "2"), "3") != pairwise_sum(["0", "1", "2", "3"], spell)


def test_accumulate_finds_the_fewest_subtrees():
    """A rank is left with the subtrees that `nodes` names, at most 2 log2(V) of them, which cover its range."""
    for leaves in range(1, 34):
        for start in range(leaves):
            for stop in range(start + 1, leaves + 1):
                partials = accumulate(start, range(start, stop), leaves, lambda left, right: left + right)
                found = [node for node, _ in partials]
                assert found == nodes(start, stop, leaves)
                assert [total for _, total in partials] == [sum(range(*node)) for node in found]
                assert [found[0][0], *(node[1] for node in found)] == [*(node[0] for node in found), stop]
                assert len(found) <= max(1, 2 * math.log2(leaves))


def test_one_partial_where_the_ranks_divide_a_power_of_two():
    """With V a power of two and M dividing it, each rank ships exactly one partial."""
    for log_replicas in range(7):
        for log_ranks in range(log_replicas + 1):
            replicas = 1 << log_replicas
            for hosted in place_evenly(replicas, 1 << log_ranks):
                assert nodes(hosted.start, hosted.stop, replicas) == [(hosted.start, hosted.stop)]


def most_alive(start, stop, leaves):
    """Return how many leaves and sums exist at once while a rank accumulates."""
    alive = peak = 0

    def leaf_values():
        nonlocal alive, peak
        for leaf in range(start, stop):
            alive += 1
            peak = max(peak, alive)
            yield leaf

    def add(left, right):
        nonlocal alive
        alive -= 1
        return left + right

    accumulate(start, leaf_values(), leaves, add)
    return peak


def test_few_values_are_alive():
    """While a rank adds n leaves, at most log2(n) + 1 values exist where ranges are even, 2 log2(n) + 1 anywhere."""
    for log_replicas in range(7):
        for log_ranks in range(log_replicas + 1):
            replicas, per_rank = 1 << log_replicas, 1 << (log_replicas - log_ranks)
            for hosted in place_evenly(replicas, 1 << log_ranks):
                assert most_alive(hosted.start, hosted.stop, replicas) <= math.log2(per_rank) + 1
    for leaves in range(1, 34):
        for start in range(leaves):
            for stop in range(start + 1, leaves + 1):
                assert most_alive(start, stop, leaves) <= 2 * math.log2(stop - start) + 1


def test_leaves_are_taken_one_at_a_time():
    """`accumulate` asks for a leaf only after it has added all it could: the caller may reuse memory."""
    log = []

    def leaf_values():
        for leaf in range(4):
            log.append(f"leaf {leaf}")
            yield str(leaf)

    def add(left, right):
        log.append(f"{left}+{right}")
        return left + right

    accumulate(0, leaf_values(), 4, add)
    assert log == ["leaf 0", "leaf 1", "0+1", "leaf 2", "leaf 3", "2+3", "01+23"]


def test_a_missing_leaf_is_named():
    """A tree with a hole is refused, by the number of the leaf."""
    with pytest.raises(KeyError, match="leaf 2 of 4"):
        combine({(0, 2): 1, (3, 4): 1}, 4, lambda left, right: left + right)


def test_halves_are_siblings():
    """The two halves of every node are siblings, and neighbours of different parents are not."""
    for leaves in range(2, 34):
        todo = [(0, leaves)]
        while todo:
            start, stop = node = todo.pop()
            middle = split(node)
            assert are_siblings((start, middle), (middle, stop), leaves)
            todo += [half for half in ((start, middle), (middle, stop)) if half[1] - half[0] > 1]
    assert not are_siblings((1, 2), (2, 3), 4)
    assert not are_siblings((0, 2), (2, 3), 4)
    assert are_siblings((0, 2), (2, 3), 3)
