"""Who adds up what when ranks span hosts: the plan itself, run in one process."""

import itertools

import pytest
import torch

from collectives.hosts_programs import slices_across
from reference import bits, pairwise_sum, random_leaves
from unisono.collectives.placement import place_evenly
from unisono.collectives.process_groups.speakers import (
    carried,
    carrier,
    group_by_host,
    host_nodes,
    host_of,
)
from unisono.collectives.tree import combine, nodes


def layouts(world_size):
    """All ways to spread consecutive ranks over hosts."""
    for cuts in itertools.product([False, True], repeat=world_size - 1):
        names = list(itertools.accumulate(cuts, initial=0))
        yield group_by_host([str(name) for name in names])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_each_host_carries_each_slice_once(world_size):
    """On every host exactly one rank carries a slice; the owner does at home; a host's ranks carry about as many."""
    for hosts in layouts(world_size):
        for host, ranks in enumerate(hosts):
            assert all(host_of(hosts, rank) == host for rank in ranks)
            shares = [carried(hosts, rank) for rank in ranks]
            assert sorted(itertools.chain(*shares)) == list(range(world_size))
            assert all(rank in share for rank, share in zip(ranks, shares, strict=True))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
            assert all(carrier(hosts, host, part) in ranks for part in range(world_size))


@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
def test_the_sums_that_cross_make_up_the_tree(world_size):
    """For every layout, number of replicas and short batch: the hosts' sums together give the tree's bits."""
    for hosts in layouts(world_size):
        for replicas in (world_size, 8, 13):
            placement = place_evenly(replicas, world_size)
            for leaves in (1, replicas // 2, replicas):
                values = random_leaves(replicas, [7], torch.float32, seed=leaves)
                crossing = host_nodes(hosts, placement, leaves)
                partials = {
                    node: combine({(i, i + 1): values[i] for i in range(*node)}, leaves, torch.add, root=node)
                    for found in crossing
                    for node in found
                }
                total = combine(partials, leaves, torch.add)
                assert bits(total) == bits(pairwise_sum(values[:leaves], torch.add))


def test_fewer_bytes_than_rank_by_rank():
    """2 x 2 ranks: each host sends half of the buffer twice, not each of its ranks."""
    hosts = group_by_host(["a", "a", "b", "b"])
    placement = place_evenly(8, 4)
    # A quarter of the buffer each: one partial to the other host's owner of the slice, one result back.
    assert slices_across(hosts, placement, 8) == [2, 2, 2, 2]
    flat = [2 * len(nodes(hosted.start, hosted.stop, 8)) + 2 for hosted in placement]
    assert flat == [4, 4, 4, 4]


def test_hosts_in_turn():
    """Ranks that are dealt to the hosts in turn have no hosts in this sense; names may come back in no other way."""
    assert group_by_host(["a", "b", "a", "b"]) is None
    assert group_by_host(["a", "b", "b", "a"]) is None
    assert group_by_host(["a"]) == (range(1),)
