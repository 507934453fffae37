"""The simulator against the closed formulas, and what it adds to them."""

import itertools

import pytest

from scaling.hierarchies import hierarchical
from scaling.hierarchies import parameter_server as server_schedule
from scaling.simulator import run_schedule
from unisono.collectives.schedules import plan, simulate, start
from unisono.errors import ConfigError
from unisono.scaling.costs import ALGORITHMS, parameter_server
from unisono.scaling.machine import Link, Machine

SLOW = Link(latency_s=5e-6, s_per_byte=1 / 50e9, overhead_s=1e-6)
FAST = Link(latency_s=2e-6, s_per_byte=1 / 450e9, overhead_s=5e-7)
FLAT = Machine(inside=SLOW, between=SLOW, node_size=1 << 20, add_s_per_byte=1e-12)
NODES = Machine(inside=FAST, between=SLOW, node_size=8, nics=8, add_s_per_byte=1e-12)
S = 10_000_000


@pytest.mark.parametrize("name", ["ring", "owner-computes", "naive-ring", "halving-doubling"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8, 16, 33])
def test_formula_and_simulation_agree(name, ranks):
    """Within 1 % (in fact within rounding of the chunks), with and without contention for ports, on equal links."""
    formula = ALGORITHMS[name](ranks, S, FLAT).seconds
    assert run_schedule(plan(name, ranks), S, FLAT).seconds == pytest.approx(formula, rel=0.001)
    if name != "halving-doubling":  # whose spare ranks meet the others' messages
        assert run_schedule(plan(name, ranks), S, FLAT, contention=True).seconds == pytest.approx(formula, rel=0.001)


@pytest.mark.parametrize("ranks", [2, 4, 16, 64])
def test_trees_of_powers_of_two_agree(ranks):
    """For other numbers some ranks have less to do than the formula's rounds say."""
    assert run_schedule(plan("tree", ranks), S, FLAT).seconds == pytest.approx(
        ALGORITHMS["tree"](ranks, S, FLAT).seconds
    )
    odd = run_schedule(plan("tree", ranks + 1), S, FLAT).seconds
    assert odd <= ALGORITHMS["tree"](ranks + 1, S, FLAT).seconds * 1.0001


@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
@pytest.mark.parametrize("nics", [1, 2, 8])
def test_the_hierarchy_agrees(nodes, nics):
    """Cards shared by ranks of a node slow the formula and the simulation alike."""
    machine = Machine(inside=FAST, between=SLOW, node_size=8, nics=nics, add_s_per_byte=1e-12)
    formula = ALGORITHMS["hierarchical"](8 * nodes, S, machine).seconds
    assert run_schedule(hierarchical(nodes, 8), S, machine).seconds == pytest.approx(formula, rel=0.001)


def test_a_wrong_formula_would_be_noticed():
    """The control: a ring of one round more is not within 1 %."""
    formula = ALGORITHMS["ring"](8, S, FLAT).seconds
    assert run_schedule(plan("ring", 9), S, FLAT).seconds != pytest.approx(formula, rel=0.01)


@pytest.mark.parametrize("workers", [1, 2, 6, 16])
def test_a_parameter_server_agrees_with_contention(workers):
    """Its port takes the workers in turn, and it adds when all have arrived."""
    formula = parameter_server(workers, S, FLAT, 1).seconds
    found = run_schedule(server_schedule(workers, 1), S, FLAT, contention=True).seconds
    assert found == pytest.approx(formula, rel=0.01)


@pytest.mark.parametrize(("workers", "servers"), [(6, 2), (4, 4), (2, 5)])
def test_several_servers_are_near_the_formula(workers, servers):
    """Workers that visit servers in the same order meet; servers that are done early answer early."""
    formula = parameter_server(workers, S, FLAT, servers).seconds
    found = run_schedule(server_schedule(workers, servers), S, FLAT, contention=True).seconds
    assert 0.75 * formula < found < 1.5 * formula


def test_rings_across_nodes_are_bounded_by_the_formula():
    """Ranks do not wait for all others after each round, so the slow links cost at most what the formula says."""
    formula = ALGORITHMS["ring"](64, S, NODES).seconds
    assert 0.4 * formula < run_schedule(plan("ring", 64), S, NODES).seconds <= formula


def test_stragglers_hold_everybody_up():
    """A late rank delays all by as much; a slow one by its share, and all of them."""
    schedule = plan("ring", 8)
    quiet = run_schedule(schedule, S, FLAT)
    late = run_schedule(schedule, S, FLAT, late_s=[0.0] * 7 + [0.5])
    assert late.seconds == pytest.approx(quiet.seconds + 0.5, rel=0.02)
    slow = run_schedule(schedule, S, FLAT, slow={3: 2.0})
    assert 1.5 * quiet.seconds < slow.seconds < 2.2 * quiet.seconds
    assert min(slow.finished_s) > quiet.seconds


def test_contention_for_one_card_takes_turns():
    """8 ranks behind one card: with contention an all-to-all takes at least its bytes through that card."""
    shared = Machine(inside=FAST, between=SLOW, node_size=8, nics=1)
    found = run_schedule(plan("owner-computes", 16), S, shared, contention=True)
    through_card_s = 2 * 8 * 8 * S / 16 / 50e9
    assert found.seconds > through_card_s
    own = run_schedule(
        plan("owner-computes", 16), S, Machine(inside=FAST, between=SLOW, node_size=8, nics=8), contention=True
    )
    assert found.seconds > 3 * own.seconds


@pytest.mark.parametrize("contention", [False, True])
def test_ports_carry_one_message_at_a_time(contention):
    """No two messages of a source overlap; every message takes its time; all of the schedule's bytes are carried."""
    found = run_schedule(plan("owner-computes", 6), 6000, FLAT, contention=contention)
    assert sum(message.num_bytes for message in found.messages) == 2 * 6 * 5 * 1000
    for rank in range(6):
        mine = sorted((one for one in found.messages if one.source == rank), key=lambda one: one.began_s)
        for first, second in itertools.pairwise(mine):
            assert second.began_s >= first.arrived_s - SLOW.latency_s - 1e-12
        assert len(mine) == 10


def test_wrong_settings_are_refused():
    """As many times as ranks, and factors that slow down."""
    with pytest.raises(ConfigError, match="late_s"):
        run_schedule(plan("ring", 3), S, FLAT, late_s=[0.0])
    with pytest.raises(ConfigError, match="slow"):
        run_schedule(plan("ring", 3), S, FLAT, slow={7: 2.0})
    with pytest.raises(ConfigError, match="slow"):
        run_schedule(plan("ring", 3), S, FLAT, slow={1: 0.5})


@pytest.mark.parametrize(("nodes", "size"), [(1, 1), (1, 4), (2, 2), (3, 4), (4, 3)])
def test_the_hierarchical_schedule_adds_everything_once(nodes, size):
    """Run on numbers, every rank ends with the sum of all in every slice."""
    schedule = hierarchical(nodes, size)
    ranks = nodes * size
    held = simulate(schedule, start(schedule, lambda rank, chunk: 100 ** (rank % 3) + chunk), lambda a, b: a + b)
    expected = {chunk: sum(100 ** (rank % 3) + chunk for rank in range(ranks)) for chunk in range(ranks)}
    assert held == [expected] * ranks


def test_the_servers_schedule_gives_workers_the_sum():
    """Servers begin with zeros; every worker ends with the sum of all workers."""
    schedule = server_schedule(3, 2)
    held = simulate(schedule, start(schedule, lambda rank, _: rank + 1 if rank < 3 else 0), lambda a, b: a + b)
    assert held[:3] == [{0: 6, 1: 6}] * 3
