"""Code that is for one rank runs on one rank; a collective in it is reported, not waited for."""

import pytest
import torch
import torch.distributed as dist

from collectives import place_programs
from ranks import run_processes, run_threads
from unisono.collectives import places
from unisono.collectives.loopback import run_ranks
from unisono.collectives.places import (
    Distributed,
    GuardedTransport,
    NotHere,
    check_places,
    current_world,
    enter_world,
    leader_only,
    on_rank,
)
from unisono.collectives.transport import Transport
from unisono.errors import ConfigError, PlaceError
from unisono.metrics.base import Accuracy, Metric
from unisono.world import World


def two(rank=0):
    return World(rank=rank, world_size=2, local_rank=rank, local_world_size=2)


@pytest.fixture(autouse=True)
def _own_world():
    yield
    enter_world(None)


@leader_only
def save(name, *, suffix=""):
    """Save a name."""
    return name + suffix


def test_only_one_rank_runs():
    """The chosen rank gets the result, the others a sentinel, without waiting for anything."""

    def program(transport):
        enter_world(World(rank=transport.rank, world_size=3, local_rank=transport.rank, local_world_size=3))
        first, last, every = save("a", suffix="b"), on_rank(2)(save.__wrapped__)("c"), on_rank(None)(len)("abcd")
        return [first, last, every, current_world().rank]

    found = run_ranks(program, 3)
    assert found[0][0] == "ab"
    assert found[2][1] == "c"
    assert [row[2] for row in found] == [4, 4, 4]
    assert [row[3] for row in found] == [0, 1, 2]
    others = [found[1][0], found[2][0], found[0][1], found[1][1]]
    assert all(isinstance(other, NotHere) and not other for other in others)
    assert repr(others[0]) == "NotHere()"
    assert save.__name__ == "save"
    assert save.__doc__ == "Save a name."


def test_alone_everything_runs():
    """In a world of one the decorator does nothing."""
    assert save("a") == "a"
    assert on_rank(0)(lambda: dist.is_available())() is True


@pytest.mark.parametrize("name", place_programs.LOOPBACK)
def test_a_collective_inside_is_refused(name):
    """Every operation of the transport, also through the run: the message names it and the function."""
    for rank, text in enumerate(run_threads(place_programs.call, 2, name)):
        if rank == 0:
            assert f"{place_programs.LOOPBACK[name]} was called where " in text
            assert "only_on_the_leader runs on rank 0 of 2 only" in text
            assert "Hint:" in text
        else:
            assert text == "NotHere()"


@pytest.mark.slow
def test_in_real_processes():
    """Through shared memory and through torch.distributed itself: refused on the leader, and ranks still meet."""
    leader, other = run_processes(place_programs.call_all, 2)
    assert set(leader) == set(other) == set(place_programs.PROCESSES)
    for name, operation in place_programs.PROCESSES.items():
        assert leader[name].startswith(f"PlaceError: {operation} was called where"), (name, leader[name])
        assert other[name] == "NotHere()"


def test_without_the_guard_it_would_not_be_noticed(monkeypatch):
    """Negative control: with the check taken out, the leader's barrier is answered by the other rank's next one."""
    monkeypatch.setattr(places, "refuse_alone", lambda operation: None)

    def program(transport):
        enter_world(two(transport.rank))
        guarded = GuardedTransport(transport)

        @leader_only
        def wrong():
            guarded.barrier()
            return "passed"

        answer = repr(wrong())
        if transport.rank == 1:
            guarded.barrier()
        return answer

    assert run_ranks(program, 2) == ["'passed'", "NotHere()"]


def test_the_region_ends_with_the_function():
    """After the function, also after an error in it, collectives are allowed again; regions may be nested."""

    def program(transport):
        enter_world(two(transport.rank))
        guarded = GuardedTransport(transport)

        @leader_only
        def outer():
            save("x")
            with pytest.raises(PlaceError, match="outer"):
                guarded.barrier()
            raise ZeroDivisionError

        if transport.rank == 0:
            with pytest.raises(ZeroDivisionError):
                outer()
        guarded.barrier()
        return guarded.all_gather_json(transport.rank)

    assert run_ranks(program, 2) == [[0, 1], [0, 1]]


def test_what_runs_later_is_refused():
    """Generators and coroutines run after the region has ended: they are refused where they are decorated."""

    def generate():
        yield 1

    async def wait():
        pass

    for function in (generate, wait):
        with pytest.raises(ConfigError, match="whose body runs later"):
            leader_only(function)
    with pytest.raises(ConfigError, match="rank >= 0"):
        on_rank(-1)
    enter_world(two())
    with pytest.raises(PlaceError, match="for rank 2, expected one of 2"):
        on_rank(2)(len)("")


class OnlyAlone(Distributed):
    runs_on = "alone"


class OnLeader(Distributed):
    runs_on = "leader"


class Nowhere(Distributed):
    runs_on = "rank 0"


class Plain:
    """Says nothing."""


@pytest.mark.parametrize(
    ("component", "words"),
    [(OnlyAlone(), "cannot work with several ranks"), (Plain(), "does not say where it runs"), (Nowhere(), "'rank 0'")],
)
def test_components_are_refused_at_start(component, words):
    """A component that cannot work with several ranks, or does not say, is named with the way out."""
    with pytest.raises(PlaceError, match=words) as caught:
        check_places({"callback 2": component}, two())
    assert f"callback 2 ({type(component).__name__})" in str(caught.value)


def test_components_that_fit_pass():
    """One rank takes whatever works alone; several ranks take what says so. A metric runs everywhere."""
    check_places({"a": OnlyAlone(), "b": Plain(), "c": OnLeader()}, World())
    check_places({"c": OnLeader(), "d": Distributed(), "e": Accuracy()}, two())
    with pytest.raises(PlaceError, match="every rank's samples"):
        check_places({"m": OnLeader()}, two(), everywhere=True)
    with pytest.raises(PlaceError, match="expected runs_on"):
        check_places({"n": Nowhere()}, World())


def test_components_know_whether_they_are_distributed():
    """`is_distributed` is the answer of the run's world."""
    component = Accuracy()
    assert isinstance(component, Metric)
    assert not component.is_distributed
    enter_world(two())
    assert component.is_distributed
    enter_world(None)
    assert not component.is_distributed


def test_the_guard_is_a_transport_like_any_other():
    """It carries what the one below carries, counts the same bytes, and closes it."""

    def program(transport):
        guarded = GuardedTransport(transport)
        everyone = torch.empty(2)
        guarded.all_gather(torch.full((1,), float(guarded.rank)), everyone)
        received = torch.empty(2)
        guarded.all_to_all(torch.tensor([1.0, 2.0]), [1, 1], received, [1, 1])
        guarded.bytes_sent += 1
        guarded.board = None
        guarded.close()
        assert isinstance(guarded, Transport)
        return everyone.tolist(), received.tolist(), guarded.bytes_sent == transport.bytes_sent > 1, guarded.board

    assert run_ranks(program, 2) == [([0.0, 1.0], [1.0, 1.0], True, None), ([0.0, 1.0], [2.0, 2.0], True, None)]
