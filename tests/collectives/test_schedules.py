"""Schedules: everything arrives, the bits are those that are promised, and the cost is what is said."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.collectives.schedules import SCHEDULES, Move, Schedule, bytes_sent, plan, simulate, start, states
from unisono.collectives.tree import combine
from unisono.errors import ConfigError

RANKS = range(1, 17)
SUMS = ("ring", "naive-ring", "tree", "owner-computes", "halving-doubling", "all-reduce")
CANONICAL = ("tree", "owner-computes", "all-reduce")
HALVING_IS_CANONICAL = {1, 2, 3, 4, 6, 7, 8, 12, 14, 15, 16}
EVERYTHING = [pytest.param(name, n, id=f"{name}-{n}") for name in SCHEDULES for n in RANKS]
ALL_SUMS = [pytest.param(name, n, id=f"{name}-{n}") for name in SUMS for n in RANKS]


def spell(left, right):
    """Add as text."""
    return f"({left}+{right})"


def rough(rank, chunk):
    """Return float32 values of very different size, so that each order of addition rounds in its own way."""
    generator = np.random.default_rng([rank, chunk])
    return (generator.standard_normal(64) * 2.0 ** generator.integers(-6, 7, 64)).astype(np.float32)


def bits_at_end(name, n):
    """Run with float32; return each rank's whole buffer as bytes, and the canonical tree's."""
    schedule = plan(name, n)
    whole = [np.concatenate([rough(rank, chunk) for chunk in range(48)]) for rank in range(n)]
    cut = [np.array_split(values, schedule.num_chunks) for values in whole]
    final = simulate(schedule, start(schedule, lambda rank, chunk: cut[rank][chunk].copy()), np.add)
    expected = combine({(rank, rank + 1): values for rank, values in enumerate(whole)}, n, np.add)
    ends = [b"".join(held[chunk].tobytes() for chunk in range(schedule.num_chunks)) for held in final]
    return ends, expected.tobytes()


def ranks_in(text):
    """Return which ranks' values a text adds up, and how often each."""
    return Counter(int(part) for part in text.replace("(", "").replace(")", "").split("+"))


def delivered(schedule):
    """Return what each rank must hold at the end of a pattern that only copies: by chunk, whose value."""
    n = schedule.world_size
    return {
        "scatter": [dict.fromkeys(range(n), 0), *({rank: 0} for rank in range(1, n))],
        "gather": [{rank: rank for rank in range(n)}, *({rank: rank} for rank in range(1, n))],
        "broadcast": [{0: 0}] * n,
        "all-gather": [{rank: rank for rank in range(n)}] * n,
    }[schedule.name]


@pytest.mark.parametrize(("name", "n"), ALL_SUMS)
def test_every_rank_gets_each_value_once(name, n):
    """At the end each chunk of each rank is the sum of all ranks' values of that chunk, none twice, none missing."""
    schedule = plan(name, n)
    for held in simulate(schedule, start(schedule, lambda rank, _: str(rank)), spell):
        assert sorted(held) == list(range(schedule.num_chunks))
        assert all(ranks_in(text) == Counter(range(n)) for text in held.values())


@pytest.mark.parametrize("n", RANKS)
def test_patterns_deliver(n):
    """Scatter, gather, broadcast and all-gather put the chunks where they belong; reduce adds up on rank 0 alone."""
    for name in ("scatter", "gather", "broadcast", "all-gather"):
        schedule = plan(name, n)
        assert simulate(schedule, start(schedule, lambda rank, _: rank), spell) == delivered(schedule)
    final = simulate(plan("reduce", n), [{0: str(rank)} for rank in range(n)], spell)
    assert final[0][0] == combine({(rank, rank + 1): str(rank) for rank in range(n)}, n, spell)
    assert [held[0] for held in final[1:]] == [str(rank) for rank in range(1, n)]


@pytest.mark.parametrize(("name", "n"), ALL_SUMS)
def test_bits(name, n):
    """All ranks end with the same bits, except in the naive ring, which is the control; some have the tree's bits."""
    ends, canonical = bits_at_end(name, n)
    if name == "naive-ring" and n >= 3:
        assert len(set(ends)) > 1
        assert ends != [canonical] * n
    else:
        assert len(set(ends)) == 1
    if name in CANONICAL or n <= 2:
        assert ends == [canonical] * n
    if name == "halving-doubling":
        assert (ends == [canonical] * n) == (n in HALVING_IS_CANONICAL)
    if name == "ring" and n >= 3:
        assert ends[0] != canonical


@pytest.mark.parametrize("n", RANKS)
def test_the_tree_adds_as_the_canonical_tree_does(n):
    """Not only the bits but every bracket of tree, owner-computes and all-reduce is `tree.combine`'s."""
    expected = combine({(rank, rank + 1): str(rank) for rank in range(n)}, n, spell)
    for name in CANONICAL:
        schedule = plan(name, n)
        final = simulate(schedule, start(schedule, lambda rank, _: str(rank)), spell)
        assert {text for held in final for text in held.values()} == {expected}


@pytest.mark.parametrize("n", RANKS)
def test_bytes(n):
    """The bytes of each rank are exactly those of the formulas."""
    size = math.lcm(*RANKS)  # so that every number of chunks divides it
    levels = math.ceil(math.log2(n))
    share = Fraction(size, n)
    assert bytes_sent(plan("naive-ring", n), size) == [(n - 1) * size] * n
    assert bytes_sent(plan("all-reduce", n), size) == [(n - 1) * size] * n
    assert bytes_sent(plan("ring", n), size) == [2 * (n - 1) * share] * n
    assert bytes_sent(plan("owner-computes", n), size) == [2 * (n - 1) * share] * n
    sent = bytes_sent(plan("tree", n), size)
    assert sent[0] == levels * size
    assert sum(sent) == 2 * (n - 1) * size
    if n & (n - 1) == 0:
        assert bytes_sent(plan("halving-doubling", n), size) == [2 * (n - 1) * share] * n
    else:
        power = 2 ** int(math.log2(n))
        within = Fraction(2 * (power - 1) * size, power)
        pairs = [within + size, size] * (n - power)
        assert bytes_sent(plan("halving-doubling", n), size) == pairs + [within] * (2 * power - n)
    assert bytes_sent(plan("scatter", n), size) == [(n - 1) * share, *[0] * (n - 1)]
    assert bytes_sent(plan("gather", n), size) == [0, *[share] * (n - 1)]
    assert bytes_sent(plan("reduce", n), size) == [0, *[size] * (n - 1)]
    assert bytes_sent(plan("broadcast", n), size) == [(n - 1) * size, *[0] * (n - 1)]
    assert bytes_sent(plan("all-gather", n), size) == [(n - 1) * share] * n


@given(name=st.sampled_from(sorted(SCHEDULES)), n=st.integers(1, 16), size=st.integers(0, 1000))
def test_bytes_that_the_chunks_do_not_divide(name, n, size):
    """No byte is lost or counted twice where chunks differ by one: a rank is at most a byte per move off."""
    schedule = plan(name, n)
    moves = Counter(move.source for moves in schedule.rounds for move in moves)
    for rank, sent in enumerate(bytes_sent(schedule, size)):
        assert abs(sent - Fraction(size * moves[rank], schedule.num_chunks)) <= moves[rank]
        if schedule.num_chunks == 1:
            assert sent == size * moves[rank]


@pytest.mark.parametrize("n", RANKS)
def test_rounds(n):
    """The number of rounds is the formulas'; one rank alone needs none."""
    power_of_two = n & (n - 1) == 0
    expected = {
        "naive-ring": n - 1,
        "ring": 2 * (n - 1),
        "tree": 2 * math.ceil(math.log2(n)),
        "owner-computes": 2,
        "halving-doubling": 2 * int(math.log2(n)) + (0 if power_of_two else 2),
    }
    for name in SCHEDULES:
        assert len(plan(name, n).rounds) == (0 if n == 1 else expected.get(name, 1)), name


@pytest.mark.parametrize(("name", "n"), EVERYTHING)
def test_no_round_waits_for_itself(name, n):
    """Every rank can send at once: each move sends what its source held before the round, to another rank, once."""
    schedule = plan(name, n)
    held_before = states(schedule, start(schedule, lambda rank, chunk: 1), lambda left, right: left + right)
    for moves, held in zip(schedule.rounds, held_before, strict=False):
        assert len(set(moves)) == len(moves)
        for move in moves:
            assert move.source != move.target
            assert move.chunk in held[move.source]
        if name in ("ring", "naive-ring"):  # one message to the right, one from the left
            assert sorted((move.source, move.target) for move in moves) == [(r, (r + 1) % n) for r in range(n)]
        if name == "halving-doubling":  # with one partner at a time
            pairs = {(move.source, move.target) for move in moves}
            assert len({source for source, _ in pairs}) == len({target for _, target in pairs}) == len(pairs)


@pytest.mark.parametrize("n", RANKS)
def test_a_schedule_says_what_it_is(n):
    """Its name is the one it was asked by; each rank starts with its own chunk, rank 0 with all, or all with all."""
    own = tuple(range(rank, rank + 1) for rank in range(n))
    for name in SCHEDULES:
        schedule = plan(name, n)
        everything, nothing = range(schedule.num_chunks), range(0)
        assert (schedule.name, schedule.world_size) == (name, n)
        actions = {move.action for moves in schedule.rounds for move in moves}
        assert actions <= ({"forward"} if name == "naive-ring" else {"copy", "add"})
        if name in ("gather", "all-gather"):
            assert schedule.holds == own
        elif name in ("scatter", "broadcast"):
            assert schedule.holds == (everything, *[nothing] * (n - 1))
        else:
            assert schedule.holds == (everything,) * n


def test_golden_ring_of_three():
    """The moves of a ring of three, and how each chunk is added up, as on paper."""
    schedule = plan("ring", 3)
    assert [[(m.source, m.target, m.chunk, m.action) for m in moves] for moves in schedule.rounds] == [
        [(0, 1, 2, "add"), (1, 2, 0, "add"), (2, 0, 1, "add")],
        [(0, 1, 1, "add"), (1, 2, 2, "add"), (2, 0, 0, "add")],
        [(0, 1, 0, "copy"), (1, 2, 1, "copy"), (2, 0, 2, "copy")],
        [(0, 1, 2, "copy"), (1, 2, 0, "copy"), (2, 0, 1, "copy")],
    ]
    final = simulate(schedule, start(schedule, lambda rank, chunk: str(rank)), spell)
    assert final == [{0: "(0+(1+2))", 1: "((0+2)+1)", 2: "((0+1)+2)"}] * 3


def test_golden_naive_ring_of_three():
    """Each rank of the naive ring adds first its own, then its left neighbours', nearest first."""
    schedule = plan("naive-ring", 3)
    assert schedule.rounds == ((Move(0, 1, 0, "forward"), Move(1, 2, 0, "forward"), Move(2, 0, 0, "forward")),) * 2
    final = simulate(schedule, [{0: "0"}, {0: "1"}, {0: "2"}], spell)
    assert [held[0] for held in final] == ["((0+2)+1)", "((1+0)+2)", "((2+1)+0)"]


def test_golden_tree_of_five():
    """The tree of five: up in three rounds, and down the same way."""
    up = [[(1, 0), (3, 2)], [(2, 0)], [(4, 0)]]
    down = [[(0, 4)], [(0, 2)], [(0, 1), (2, 3)]]
    schedule = plan("tree", 5)
    assert [[(m.source, m.target) for m in moves] for moves in schedule.rounds] == up + down
    assert simulate(schedule, [{0: str(rank)} for rank in range(5)], spell)[3] == {0: "(((0+1)+(2+3))+4)"}


def test_golden_halving_of_four():
    """Partners swap halves at distance 1 and quarters at distance 2."""
    first, second, *_ = plan("halving-doubling", 4).rounds
    assert {(m.source, m.target, m.chunk) for m in first} == {
        (0, 1, 2), (0, 1, 3), (1, 0, 0), (1, 0, 1), (2, 3, 2), (2, 3, 3), (3, 2, 0), (3, 2, 1)
    }  # fmt: skip
    assert {(m.source, m.target, m.chunk) for m in second} == {(0, 2, 1), (2, 0, 0), (1, 3, 3), (3, 1, 2)}


def made(*rounds, n=3, holds=None):
    """Return a schedule of our own."""
    return Schedule(
        name="made", world_size=n, num_chunks=2, holds=tuple(holds or [range(2)] * n), rounds=tuple(map(tuple, rounds))
    )


ONE = [range(1), range(0), range(0)]
WHERE = "made, round 1 of 1: "


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            made([Move(0, 1, 0, "copy")], [Move(1, 2, 0, "copy"), Move(1, 0, 1, "copy")], holds=ONE),
            "made, round 2 of 2: rank 1 sends chunk 1, but holds only [0] before this round. "
            "Hint: what a round delivers can be sent in the next one.",
        ),
        (
            made([Move(0, 1, 0, "copy"), Move(1, 2, 0, "copy")], holds=ONE),
            WHERE + "rank 1 sends chunk 0, but holds only [] before this round. "
            "Hint: what a round delivers can be sent in the next one.",
        ),
        (
            made([Move(0, 1, 0, "add")], holds=ONE),
            f"{WHERE}rank 1 has no chunk 0 to add to, got {Move(0, 1, 0, 'add')}.",
        ),
        (
            made([Move(0, 1, 0, "forward")], holds=ONE),
            f"{WHERE}rank 1 has no chunk 0 to add to, got {Move(0, 1, 0, 'forward')}.",
        ),
        *(
            (
                made(moves),
                f"{WHERE}expected one move, or additions from different ranks, into chunk 1 of rank 2, got {moves}.",
            )
            for moves in (
                [Move(0, 2, 1, "copy"), Move(1, 2, 1, "copy")],
                [Move(0, 2, 1, "add"), Move(1, 2, 1, "copy")],
                [Move(0, 2, 1, "add"), Move(0, 2, 1, "add")],
            )
        ),
        (made([Move(0, 3, 0, "copy")]), f"{WHERE}expected ranks 0 to 2, got {Move(0, 3, 0, 'copy')}."),
        (made([Move(-1, 0, 0, "copy")]), f"{WHERE}expected ranks 0 to 2, got {Move(-1, 0, 0, 'copy')}."),
        (made([Move(1, 1, 0, "add")]), f"{WHERE}expected a move between two ranks, got {Move(1, 1, 0, 'add')}."),
    ],
)
def test_impossible_schedules_are_refused(schedule, message):
    """What a round has not delivered cannot be sent, and two moves cannot fight for one chunk: named where it is."""
    with pytest.raises(ConfigError) as caught:
        simulate(schedule, start(schedule, lambda rank, chunk: 1), lambda left, right: left + right)
    assert str(caught.value) == message


def test_a_round_reads_what_was_there_before_it():
    """Two ranks can swap in one round, and the caller's buffers are left alone."""
    swap = made([Move(0, 1, 0, "copy"), Move(1, 0, 0, "copy")], n=2)
    buffers = [{0: "left", 1: "a"}, {0: "right", 1: "b"}]
    assert simulate(swap, buffers, spell) == [{0: "right", 1: "a"}, {0: "left", 1: "b"}]
    assert buffers == [{0: "left", 1: "a"}, {0: "right", 1: "b"}]


def test_wrong_names_and_numbers():
    """An unknown schedule names the nearest; no ranks and missing buffers are refused."""
    with pytest.raises(
        ConfigError, match=rf"^expected a schedule: {', '.join(SCHEDULES)}; got 'owner-compute'\. .*did you"
    ):
        plan("owner-compute", 2)
    for name in SCHEDULES:
        for n in (0, -1):
            with pytest.raises(ConfigError, match="at least 1 rank"):
                plan(name, n)
    with pytest.raises(ConfigError, match="buffers of 3 ranks, got 2"):
        simulate(plan("ring", 3), [{}, {}], spell)
