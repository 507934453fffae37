"""Every collective against what one process computes, for drawn dtypes, shapes, strides, roots and 1 to 5 ranks.

The ranks are threads of this process that share a real board: what differs between processes (addresses, life and
death) is tested elsewhere.
"""

import os
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from collectives.operation_programs import DTYPES, LAYOUTS, OPERATIONS, Case, act, plain_bits
from unisono.collectives.reductions import REDUCTIONS, is_defined
from unisono.collectives.shm.board import SharedBoard
from unisono.collectives.shm.operations import Collectives
from unisono.collectives.shm.tuning import Plan

SLOT_BYTES = 2048  # room for one smallest piece of complex128 between 5 ranks, 1280 bytes, and not for much more


class Ranks:
    """The ranks of one world, as threads that wait for calls."""

    def __init__(self, world_size):
        first, address = SharedBoard.create(world_size, SLOT_BYTES, 30)
        others = (SharedBoard.attach(address, rank, world_size, SLOT_BYTES, 30) for rank in range(1, world_size))
        self.boards = [first, *others]
        for board in self.boards:
            board.watch([os.getpid()] * world_size)
        self.groups = [Collectives(board) for board in self.boards]
        self.pool = ThreadPoolExecutor(world_size)

    def call(self, function):
        """Return what `function` gives on each rank, once all have ended."""
        futures = [self.pool.submit(function, group) for group in self.groups]
        wait(futures)
        return [future.result() for future in futures]

    def close(self):
        self.pool.shutdown()
        for board in self.boards:
            board.close()


@pytest.fixture(scope="module")
def worlds():
    """Worlds of 1 to 5 ranks."""
    made = {world_size: Ranks(world_size) for world_size in range(1, 6)}
    yield made
    for world in made.values():
        world.close()


SHAPES = st.one_of(
    st.lists(st.integers(0, 6), max_size=4).map(tuple),
    st.integers(0, 700).map(lambda length: (length,)),  # up to several slots
)


@st.composite
def calls(draw):
    """A number of ranks, how reductions are cut, and a call."""
    world_size = draw(st.integers(1, 5))
    operation = draw(st.sampled_from(sorted(OPERATIONS)))
    op = draw(st.sampled_from(sorted(REDUCTIONS))) if OPERATIONS[operation] else "-"
    dtype = draw(st.sampled_from(DTYPES))
    assume(op == "-" or is_defined(op, dtype))
    root = draw(st.integers(0, world_size - 1))
    case = Case(operation, op, dtype, draw(SHAPES), draw(st.sampled_from(LAYOUTS)), root, draw(st.integers(0, 9999)))
    return world_size, Plan(whole_bytes=draw(st.sampled_from([0, 600, 1 << 40])), piece_bytes=256), case


def wrong(world, case):
    """The ranks on which a call gives something else than it should."""
    results = world.call(lambda group: [list(map(plain_bits, tensors)) for tensors in act(group, case)])
    return [rank for rank, (got, expected) in enumerate(results) if got != expected]


def check(worlds, call):
    world_size, plan, case = call
    for board in worlds[world_size].boards:
        board.plan = plan
    try:
        found = wrong(worlds[world_size], case)
    except Exception:  # its ranks are no longer in step: the next case gets new ones
        worlds[world_size].close()
        worlds[world_size] = Ranks(world_size)
        raise
    assert found == []


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(calls())
def test_every_collective_gives_what_one_process_computes(worlds, call):
    """Bit for bit, on every rank, whatever is drawn."""
    check(worlds, call)


@pytest.mark.slow
@settings(max_examples=4000, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(calls())
def test_every_collective_in_many_cases(worlds, call):
    """As above, with many more cases."""
    check(worlds, call)


def test_a_wrong_order_would_be_seen(worlds, monkeypatch):
    """The control: a sum in another order differs from what is expected."""
    case = Case("all_reduce", "SUM", torch.float32, (300,), "contiguous", 0, 1)
    world = worlds[4]
    assert wrong(world, case) == []
    monkeypatch.setattr(
        "unisono.collectives.shm.board_reduce.combine",
        lambda values, leaves, add, *_: add(add(add(values[0, 1], values[1, 2]), values[2, 3]), values[3, 4]),
    )
    assert wrong(world, case) == [0, 1, 2, 3]
