"""Replicas move from slow ranks to fast ones: the rule by cases and drawn at random; in runs, with the same bits."""

import itertools
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import unisono
from ranks import run_threads
from unisono.collectives.placement import place_by_shares, place_evenly
from unisono.errors import ConfigError
from unisono.train.steps.balance import FEWEST, MOST, Balance, Balancer, place_by_times

STEPS = FEWEST + 4
MS = 1_000_000
TIMES = st.lists(st.integers(1, 10**12), min_size=1, max_size=5)


def counts(placement):
    """Return how many replicas each rank has."""
    return [len(part) for part in placement]


def longest(numbers, times):
    """Return when the slowest rank is done."""
    return max(number * one for number, one in zip(numbers, times, strict=True))


def shared_out(replicas, ranks):
    """Return every way to give all ranks at least one replica."""
    cuts = itertools.combinations(range(1, replicas), ranks - 1)
    return [[b - a for a, b in itertools.pairwise((0, *cut, replicas))] for cut in cuts]


@pytest.mark.parametrize(
    ("replicas", "times", "expected"),
    [
        (8, [1, 4], [7, 1]),  # by largest remainders 6, 2, which takes 8 and not 7
        (16, [1, 4], [13, 3]),
        (8, [5, 5], [4, 4]),
        (3, [1, 1, 1000], [1, 1, 1]),
        (9, [2, 1, 2], [2, 5, 2]),
        (5, [7], [5]),
    ],
)
def test_the_slowest_rank_is_done_soonest(replicas, times, expected):
    """Counts by hand."""
    assert counts(place_by_times(replicas, times)) == expected


@given(TIMES, st.integers(0, 4))
def test_no_other_placement_is_faster(times, more):
    """Of all contiguous placements none has a slowest rank that is done sooner; all replicas are there, in order."""
    replicas = len(times) + more
    found = place_by_times(replicas, times)
    assert [replica for part in found for replica in part] == [*range(replicas)]
    assert min(counts(found)) >= 1
    assert longest(counts(found), times) == min(longest(other, times) for other in shared_out(replicas, len(times)))


def decide(balance, placement, rows):
    """Note steps; return what came of each."""
    return [balance.note(placement, row) for row in rows]


def busy(placement, times):
    """Return what the ranks measure where a replica takes them so long."""
    return [len(part) * one for part, one in zip(placement, times, strict=True)]


def test_replicas_move_after_so_many_steps_by_their_median():
    """A few slow steps of a fast rank have no say; a rank that is slow in most of them loses replicas."""
    even = place_evenly(8, 2)
    wild = [busy(even, [MS, 900 * MS])] * (FEWEST // 2 - 1) + [busy(even, [MS, MS])] * (FEWEST // 2 + 1)
    assert decide(Balance(), even, wild) == [None] * FEWEST
    found = decide(Balance(), even, [busy(even, [MS, 4 * MS])] * FEWEST)
    assert found == [None] * (FEWEST - 1) + [[range(7), range(7, 8)]]


def test_a_small_gain_moves_nothing():
    """4 and 4 stay where 5 and 3 would be 4 % faster, and not where they would be 6 %."""
    even = place_evenly(8, 2)
    for slow, expected in ((130, None), (134, [range(5), range(5, 8)])):
        assert decide(Balance(), even, [busy(even, [100, slow])] * FEWEST)[-1] == expected


def test_ranks_whose_speed_wavers_move_less_and_less():
    """Every move doubles the steps up to the next decision, at most to `MOST`; where none is needed they halve."""
    balance, placement, moved = Balance(), place_evenly(8, 2), []
    for step in range(4 * MOST):
        slow = [4 * MS, MS] if len(moved) % 2 else [MS, 4 * MS]
        found = balance.note(placement, busy(placement, slow))
        if found:
            placement = found
            moved.append(step + 1)
    assert [after - before for before, after in itertools.pairwise([0, *moved])][:6] == [16, 32, 64, 128, 256, 256]
    steady = busy(placement, [MS * 8 // len(part) for part in placement])
    assert decide(balance, placement, [steady] * MOST * 3) == [None] * MOST * 3
    odd = busy(placement, [4 * MS, MS] if len(placement[0]) > 4 else [MS, 4 * MS])
    waited = next(step for step in itertools.count(1) if balance.note(placement, odd))
    assert waited <= FEWEST


def test_nothing_is_noted_of_short_batches_and_in_a_world_of_one():
    """Where a replica has had no sample nothing is known of its time."""
    balance, even = Balance(), place_evenly(8, 2)
    assert decide(balance, even, [()] * 99 + [busy(even, [MS, 9 * MS])] * (FEWEST - 1)) == [None] * (98 + FEWEST)
    assert balance.note(even, busy(even, [MS, 9 * MS]))
    assert decide(Balance(), [range(8)], [[MS]] * 99) == [None] * 99


@settings(max_examples=40)
@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=5), st.data())
def test_a_move_is_a_gain_and_the_next_decision_rests(times, data):
    """From any placement: what is moved to is a twentieth better, and with the same times nothing moves again."""
    replicas = data.draw(st.integers(len(times), 20))
    start = place_by_shares(replicas, data.draw(st.lists(st.integers(1, 9), min_size=len(times), max_size=len(times))))
    balance, placement, moves = Balance(), start, 0
    for _ in range(8 * FEWEST):
        found = balance.note(placement, busy(placement, times))
        if found:
            assert longest(counts(found), times) <= 0.95 * longest(counts(placement), times)
            placement, moves = found, moves + 1
    assert moves <= 1
    assert longest(counts(placement), times) * 0.95 < longest(counts(place_by_times(replicas, times)), times)


def train(transport, balance, slow=None, dropout=0.2):
    """Train on ranks of which one needs 5 ms more a replica; return fingerprint, losses and counts of each step."""
    strategy = unisono.strategy("exact", balance=balance)
    with unisono.Run(seed=1, replicas=6, transport=transport, strategy=strategy) as run:
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(dropout), torch.nn.Linear(8, 3)
        )
        model, _ = run.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-2))
        x = torch.randn(132, 6, generator=torch.Generator().manual_seed(0))
        data = unisono.ArrayDataset(x, x.argmax(1) % 3)
        losses, seen = [], []

        def loss(micro):
            time.sleep(0.02 if run.world.rank == slow else 0)
            return F.cross_entropy(model(micro.x), micro.y)

        for batch in run.steps(run.loader(data, batch_size=24), epochs=99):
            seen.append(counts(run.placement))
            losses.append(run.step(batch, loss).hex())
            if batch.step == STEPS:
                break
        return [run.fingerprint(), losses, seen]


@pytest.mark.slow
def test_a_slow_rank_gives_replicas_away_and_no_bit_changes():
    """Three ranks, one is slowed: its replicas move, all ranks agree, bits are those of one rank; without it none."""
    [alone] = run_threads(train, 1, "none")
    moved, fixed = run_threads(train, 3, "auto", 1), run_threads(train, 3, "none", 1)
    for found in (*moved, *fixed):
        assert found[:2] == alone[:2]
    assert all(found[2] == [[2, 2, 2]] * STEPS for found in fixed)
    seen = moved[0][2]
    assert all(found[2] == seen for found in moved)
    assert seen[0] == [2, 2, 2]
    assert seen[-1][1] == 1
    assert sum(seen[-1]) == 6


def test_the_control_data_of_the_replicas_from_before_gives_other_bits(monkeypatch):
    """A rank whose replicas have moved and whose data has not computes another step."""
    data = Balancer.data
    monkeypatch.setattr(Balancer, "data", lambda self, *given: data(self, *given[:3], lambda: given[2]))
    [alone], moved = run_threads(train, 1, "none"), run_threads(train, 3, "auto", 1)
    assert moved[0][2][-1] != [2, 2, 2]
    assert moved[0][0] != alone[0]
    assert moved[0][1][:FEWEST] == alone[1][:FEWEST]
    assert moved[0][1][FEWEST:] != alone[1][FEWEST:]


def test_where_replicas_cannot_move_it_is_refused(toy):
    """Islands and streams in one line; a word that is none; other strategies have no such option."""
    with pytest.raises(ConfigError, match=r"islands keep weights.*Hint: leave one of them out"):
        unisono.strategy("exact", balance="auto", island_steps=2)
    with pytest.raises(ConfigError, match="none, auto"):
        unisono.strategy("exact", balance="fast")
    with pytest.raises(ConfigError, match="no option 'balance'"):
        unisono.strategy("ddp", balance="auto")
    stream = unisono.Stream(lambda: iter([(torch.zeros(6), 0)] * 12), window=1)
    with toy.run(strategy=unisono.strategy("exact", balance="auto")) as (run, _, _):
        steps = run.steps(run.loader(stream, batch_size=4), epochs=1)
        with pytest.raises(ConfigError, match=r"balance 'auto' moves.*the data is a stream.*Hint: leave it out"):
            next(steps)
