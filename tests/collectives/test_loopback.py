"""All ranks in one process: order of results, errors, turns."""

import threading

import pytest
import torch

from unisono.collectives.loopback import LoopbackTransport, run_ranks
from unisono.errors import ConfigError, PeerLost


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_results_come_in_rank_order(world_size):
    """Each rank knows its place, and the results are sorted by it."""
    places = run_ranks(lambda transport: (transport.rank, transport.world_size), world_size)
    assert places == [(rank, world_size) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_all_gather(world_size):
    """Every rank gets everybody's values in rank order, and they are copies."""

    def program(transport):
        mine = torch.full((3,), float(transport.rank))
        everyone = torch.empty(3 * world_size)
        transport.all_gather(mine, everyone)
        mine.fill_(-1)
        transport.barrier()
        return everyone.tolist(), transport.bytes_sent

    expected = [float(rank) for rank in range(world_size) for _ in range(3)]
    # 12 bytes to each other rank; a barrier carries none.
    assert run_ranks(program, world_size) == [(expected, 12 * (world_size - 1))] * world_size


def test_all_to_all_with_unequal_parts():
    """Part j of what rank i sends arrives as part i on rank j; empty parts are allowed; own parts cost nothing."""

    def program(transport):
        rank = transport.rank
        splits = [(rank + other) % 3 for other in range(3)]
        send = torch.cat([torch.full((n,), 10.0 * rank + other) for other, n in enumerate(splits)])
        recv = torch.empty(sum(splits))  # the table is symmetric
        transport.all_to_all(send, splits, recv, splits)
        return recv.tolist(), transport.bytes_sent

    assert run_ranks(program, 3) == [
        ([10, 20, 20], 12),
        ([1, 11, 11], 4),
        ([2, 2, 22], 8),
    ]


def test_json():
    """Values of different lengths travel to every rank."""

    def program(transport):
        return transport.all_gather_json({"rank": transport.rank, "text": "ü" * transport.rank, "none": None})

    expected = [{"rank": rank, "text": "ü" * rank, "none": None} for rank in range(3)]
    assert run_ranks(program, 3) == [expected] * 3


def test_many_collectives_in_a_row():
    """Hundreds of collectives of different sizes never mix their parcels."""

    def program(transport):
        for turn in range(300):
            numbers = [1000 * turn + rank for rank in range(4)]
            recv = torch.empty(4 * (1 + turn % 3), dtype=torch.int64)
            transport.all_gather(torch.full((1 + turn % 3,), numbers[transport.rank]), recv)
            assert recv.tolist() == [number for number in numbers for _ in range(1 + turn % 3)]
            if turn % 7 == 0:
                texts = ["x" * (number % 97) for number in numbers]
                assert transport.all_gather_json(texts[transport.rank]) == texts
        return turn

    assert run_ranks(program, 4) == [299] * 4


def test_one_rank_runs_at_a_time():
    """Between collectives no two ranks run at once, and they take turns in rank order."""
    busy = threading.Lock()
    order = []

    def program(transport):
        for _ in range(50):
            assert busy.acquire(blocking=False), "two ranks at once"
            order.append(transport.rank)
            torch.ones(1000).sum()
            busy.release()
            transport.barrier()

    run_ranks(program, 4)
    # A rank passes on the baton when it waits, so it starts again where the round comes back to it.
    assert order == [0, 1, 2, 3] * 50


def test_ranks_may_share_the_generators():
    """Process-wide state set by a rank is still its own until its next collective."""

    def program(transport):
        drawn = []
        for turn in range(10):
            torch.manual_seed(100 * turn + transport.rank)
            drawn.append(torch.rand(1).item())
            transport.barrier()
        return drawn

    alone = []
    for rank in range(3):
        alone.append(
            [torch.rand(1, generator=torch.Generator().manual_seed(100 * turn + rank)).item() for turn in range(10)]
        )
    assert run_ranks(program, 3) == alone


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_the_real_exception_comes_out(culprit):
    """The caller gets the first real exception, not the `PeerLost` that it caused on the other ranks."""
    lost = []

    def program(transport):
        transport.barrier()
        if transport.rank == culprit:
            raise KeyError("the culprit's own words")
        try:
            transport.barrier()
        except PeerLost as error:
            lost.append(transport.rank)
            assert f"rank {culprit} left" in str(error)
            raise

    with pytest.raises(KeyError, match="the culprit's own words"):
        run_ranks(program, 3)
    assert sorted(lost) == [rank for rank in range(3) if rank != culprit]


def test_the_first_of_several_exceptions_comes_out():
    """When ranks fail one after the other, the first failure is the one that is told."""

    def program(transport):
        transport.barrier()
        raise ValueError(f"rank {transport.rank}")

    with pytest.raises(ValueError, match="rank 0"):
        run_ranks(program, 3)


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_a_rank_that_leaves_early(leaver):
    """The others get `PeerLost` that names it; nobody waits for ever."""

    def program(transport):
        transport.barrier()
        if transport.rank != leaver:
            transport.barrier()

    with pytest.raises(PeerLost, match=f"rank {leaver} left"):
        run_ranks(program, 3)


def test_after_a_loss_every_collective_fails():
    """A rank that carries on after a loss is told again, and never gets half-filled results."""

    def program(transport):
        if transport.rank == 1:
            return 0
        failures = 0
        for _ in range(3):
            with pytest.raises(PeerLost):
                transport.barrier()
            failures += 1
        return failures

    assert run_ranks(program, 3) == [3, 0, 3]


def test_no_thread_is_left():
    """When `run_ranks` returns, its threads are gone."""
    before = threading.active_count()
    run_ranks(lambda transport: transport.barrier(), 5)
    assert threading.active_count() == before


def test_a_world_of_one_needs_nothing():
    """A transport made by hand is a world of one: collectives give back what was put in, and send nothing."""
    transport = LoopbackTransport()
    recv = torch.empty(2)
    transport.all_gather(torch.tensor([1.0, -0.0]), recv)
    assert recv.tolist() == [1.0, 0.0]
    assert recv.signbit().tolist() == [False, True]
    transport.all_to_all(torch.tensor([3.0, 4.0]), [2], recv, [2])
    assert recv.tolist() == [3.0, 4.0]
    assert (transport.rank, transport.world_size, transport.bytes_sent) == (0, 1, 0)
    assert transport.all_gather_json(["x"]) == [["x"]]
    transport.close()
    transport.close()


def test_an_empty_world_is_refused():
    """A world has at least one rank."""
    with pytest.raises(ConfigError, match="world_size >= 1, got 0"):
        run_ranks(lambda transport: None, 0)
