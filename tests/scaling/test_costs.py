"""The closed formulas: their limits, and what they say about each other."""

import math

import pytest
import torch

from unisono.collectives.loopback import run_ranks
from unisono.collectives.pieces import padded_length
from unisono.collectives.placement import place_evenly
from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.schedules import bytes_sent, plan
from unisono.collectives.tree import combine, owned_nodes
from unisono.errors import ConfigError
from unisono.scaling.costs import ALGORITHMS, asynchronous_cycle_s, hierarchical, owner_computes, parameter_server
from unisono.scaling.forecast import sums_of
from unisono.scaling.machine import Link, Machine

FAST = Link(latency_s=2e-6, s_per_byte=1 / 450e9, overhead_s=5e-7)
SLOW = Link(latency_s=5e-6, s_per_byte=1 / 50e9, overhead_s=1e-6)
FLAT = Machine(inside=SLOW, between=SLOW, node_size=1 << 20, add_s_per_byte=1e-12)
NODES = Machine(inside=FAST, between=SLOW, node_size=8, nics=8, add_s_per_byte=1e-12)
S = 1e8


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_rank_communicates_with_nobody(name):
    """No rounds, no bytes, no time."""
    cost = ALGORITHMS[name](1, S, NODES)
    assert cost.seconds == cost.sent_bytes == 0


def test_the_formulas_are_those_of_their_docstrings():
    """Written out once more, by hand, for 16 ranks."""
    alpha, beta, o, gamma = 5e-6, 1 / 50e9, 1e-6, 1e-12
    part = 15 / 16 * S
    by_hand = {
        "ring": 30 * (alpha + o) + 2 * part * beta + part * gamma,
        "tree": 4 * (2 * alpha + 2 * o + 2 * beta * S + gamma * S),
        "owner-computes": 2 * (alpha + 15 * o) + 2 * part * beta + part * gamma,
        "halving-doubling": 8 * (alpha + o) + 2 * part * beta + part * gamma,
        "naive-ring": 15 * (alpha + o + S * beta + S * gamma),
    }
    for name, expected in by_hand.items():
        assert ALGORITHMS[name](16, S, FLAT).seconds == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["ring", "owner-computes", "halving-doubling", "naive-ring"])
@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
def test_bytes_are_those_of_the_schedules(name, ranks):
    """What a formula says the busiest rank sends is what its schedule sends."""
    sent = max(bytes_sent(plan(name, ranks), 3200))
    assert ALGORITHMS[name](ranks, 3200, FLAT).sent_bytes == pytest.approx(sent)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 8])
def test_bytes_are_those_of_the_exact_step(ranks):
    """Also where a rank's replicas are several subtrees: what the busiest rank really sends for 8 replicas."""
    placement, length = place_evenly(8, ranks), padded_length(1000, ranks)

    def program(transport):
        leaves = {(leaf, leaf + 1): torch.ones(length) for leaf in placement[transport.rank]}
        mine = [
            (node, combine(leaves, 8, torch.add, root=node))
            for node in owned_nodes(tuple(placement), 8)[transport.rank]
        ]
        before = transport.bytes_sent
        tree_all_reduce(mine, placement, 8, torch.empty(length), transport)
        return transport.bytes_sent - before

    sums = sums_of(8, ranks)
    assert sums == (2 if ranks == 3 else 1)
    assert owner_computes(ranks, 4 * length, FLAT, sums).sent_bytes == max(run_ranks(program, ranks))


def test_small_messages_want_few_rounds_and_large_ones_few_bytes():
    """The textbook's order: a tree for small buffers, ring and owner-computes for large ones, on many ranks."""
    small = {name: ALGORITHMS[name](256, 64, FLAT).seconds for name in ALGORITHMS}
    large = {name: ALGORITHMS[name](256, 1e10, FLAT).seconds for name in ALGORITHMS}
    assert small["tree"] < small["ring"]
    assert small["halving-doubling"] < small["ring"]
    assert large["ring"] < large["tree"]
    assert large["ring"] < large["naive-ring"] / 50


def test_hierarchies_pay_where_nodes_are_joined_by_less_than_they_have_inside():
    """One card for 8 ranks: exchanging sums of whole nodes is several times faster; with one node it is the same."""
    shared = Machine(inside=FAST, between=SLOW, node_size=8, nics=1)
    assert hierarchical(64, S, shared).seconds < owner_computes(64, S, shared).seconds / 4
    assert hierarchical(8, S, shared) == owner_computes(8, S, shared)


def test_a_parameter_server_is_the_bottleneck_until_there_are_enough():
    """Time grows with the workers for one server; n servers for n workers move what owner-computes moves."""
    one = [parameter_server(ranks, S, FLAT, 1).seconds for ranks in (1, 2, 4, 8)]
    assert one == sorted(one)
    assert one[3] > 7 * one[0]
    many = parameter_server(8, S, FLAT, 8).seconds
    assert many == pytest.approx(owner_computes(8, S, FLAT).seconds * 8 / 7, rel=0.05)
    with pytest.raises(ConfigError, match="server"):
        parameter_server(2, S, FLAT, 0)


def test_asynchronous_workers_are_free_until_the_server_is_full():
    """With little to send a worker's cycle is its own; with many workers it is the server's."""
    assert asynchronous_cycle_s(4, 1.0, 8.0, FLAT) == pytest.approx(1.0, rel=1e-4)
    full = asynchronous_cycle_s(1000, 1e-3, S, FLAT)
    assert full == pytest.approx(1000 * (1e-6 + S / 50e9))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_costs_never_fall_with_ranks_beyond_a_node(name):
    """65,536 ranks in closed form, finite and ordered."""
    costs = [ALGORITHMS[name](1 << power, S, NODES).seconds for power in range(4, 17)]
    assert all(math.isfinite(cost) and cost > 0 for cost in costs)
    assert costs[-1] >= costs[0]
