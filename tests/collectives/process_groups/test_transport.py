"""Real processes, joined by gloo through the launcher."""

import pytest
import torch

from collectives.launched import launched
from collectives.rank_programs import meet_again_and_again
from ranks import run_processes
from unisono.collectives.loopback import run_ranks
from unisono.collectives.process_groups.transport import check_own_devices, connect, device_of
from unisono.errors import ConfigError
from unisono.world import World

SIZES = [2, pytest.param(3, marks=pytest.mark.slow)]


@pytest.mark.parametrize("world_size", SIZES)
def test_ranks_are_processes(world_size):
    """Each rank is a process of its own, joined through torch.distributed."""
    seen = launched(world_size)
    assert len({rank["pid"] for rank in seen}) == world_size
    assert all(rank["classes"] == ["ProcessGroupTransport"] * 2 for rank in seen)


@pytest.mark.parametrize("world_size", SIZES)
def test_messages_arrive(world_size):
    """JSON of different lengths and unequal parts arrive where they belong, and bytes to others are counted."""
    for rank, seen in enumerate(launched(world_size)):
        assert seen["gathered"] == [{"rank": other, "text": "ü" * other} for other in range(world_size)]
        expected = [10 * other + rank for other in range(world_size) for _ in range((rank + other) % 3)]
        assert seen["swapped"] == expected
        others = [other for other in range(world_size) if other != rank]
        assert seen["swapped_bytes"] == 4 * sum((rank + other) % 3 for other in others)


@pytest.mark.parametrize("world_size", SIZES)
def test_only_the_owner_closes(world_size):
    """Who joined an existing group leaves it open; who made it destroys it, and may do so twice."""
    for seen in launched(world_size):
        assert seen["is_open"]
        assert seen["is_closed"]


def test_several_groups_one_after_the_other():
    """A program may connect, close and connect again: several runs in one launch."""
    assert run_processes(meet_again_and_again, 2) == [[[0, 1]] * 4] * 2


@pytest.mark.parametrize("world_size", SIZES)
def test_a_world_of_one_has_no_group(world_size):
    """One rank alone needs no process group."""
    assert all(seen["alone"] == "LoopbackTransport" for seen in launched(world_size))


@pytest.mark.parametrize("world_size", SIZES)
def test_another_world_than_the_group(world_size):
    """A group that contradicts the environment is refused, with both descriptions."""
    for seen in launched(world_size):
        assert seen["other_size"].startswith("WorldError: the process group has rank")


@pytest.mark.parametrize("world_size", SIZES)
def test_unknown_rendezvous(world_size):
    """A rendezvous that is neither file:// nor tcp:// is a `WorldError`, not a peer that did not come."""
    for seen in launched(world_size):
        assert seen["bad_rendezvous"].startswith("WorldError: expected a rendezvous file://PATH")


@pytest.mark.parametrize("world_size", SIZES)
def test_nobody_comes(world_size):
    """Where the other ranks do not come in time, `PeerLost` says where they should have met."""
    for seen in launched(world_size):
        assert seen["nobody_came"].startswith("PeerLost: [rank 0/2] the ranks did not meet at file://")
        assert "within 1 s" in seen["nobody_came"]


@pytest.mark.parametrize("world_size", SIZES)
def test_a_rank_that_goes_away(world_size):
    """The ranks left behind get `PeerLost` with their own rank and the operation."""
    *left_behind, gone = launched(world_size)
    assert "lost" not in gone
    for rank, seen in enumerate(left_behind):
        assert seen["lost"].startswith(f"[rank {rank}/{world_size}] all_gather failed")


@pytest.mark.parametrize(
    ("visible", "shares", "asked", "found"),
    [
        (0, False, None, "cpu"),
        (1, False, None, "cuda:0"),  # the launcher has shown this rank one GPU
        (4, False, None, "cuda:3"),
        (8, False, "cuda", "cuda:3"),
        (2, True, None, "cuda:1"),
        (8, False, "cpu", "cpu"),
    ],
)
def test_a_ranks_device(monkeypatch, visible, shares, asked, found):
    """The fourth of four ranks on a host takes its own GPU where there are any; GPUs are counted, not touched."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    place = {"rank": 3, "world_size": 4, "local_rank": 3, "local_world_size": 4}
    assert device_of(World(**place, launcher="torchrun", shares_devices=shares), asked) == torch.device(found)


def test_devices_that_are_not_there(monkeypatch):
    """Fewer GPUs than ranks, or none where one is asked for; only ranks in threads go to the CPU instead."""
    place = {"rank": 3, "world_size": 4, "local_rank": 3, "local_world_size": 4}
    with pytest.raises(ConfigError, match=r"expected a GPU for device='cuda', got none.*Hint: device='cpu'"):
        device_of(World(**place, launcher="torchrun"), "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"got 4 workers and 2 GPUs.*UNISONO_SHARE_DEVICES=1"):
        device_of(World(**place, launcher="torchrun"))
    assert device_of(World(**place)) == torch.device("cpu")


@pytest.mark.parametrize(
    ("asked", "visible", "said"),
    [
        ("gpu", 0, r"expected device 'cpu', 'cuda' or 'cuda:N', got 'gpu'\. Hint: device='cuda'"),
        ("mps", 2, r"expected device 'cpu', 'cuda' or 'cuda:N', got 'mps'"),
        (None, None, ""),
        ("cuda:0", 0, r"expected a GPU for device='cuda:0', got none that torch .*Hint: device='cpu'"),
        ("cuda:5", 2, r"expected device='cuda:0' to 'cuda:1', got 'cuda:5'\. Hint: device='cuda' gives each"),
        (torch.device("cuda", 0), 0, "expected a GPU for device='cuda:0', got none"),
    ],
)
def test_devices_that_nobody_has(monkeypatch, asked, visible, said):
    """A name that torch does not know, another kind, a GPU that is not there: one message each, with the fix."""
    if visible is not None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        with pytest.raises(ConfigError, match=said):
            device_of(World(), asked)
    else:
        assert device_of(World(), torch.device("cpu")) == device_of(World(), "cpu:0") == torch.device("cpu")


def test_two_ranks_on_one_gpu():
    """Found when they meet, on all ranks alike; allowed on request, but not between hosts."""

    def meet(devices, shares):
        def program(transport):
            world = World(rank=transport.rank, world_size=3, shares_devices=shares)
            try:
                name = devices[transport.rank]
                return check_own_devices(transport, world, name, name.partition("/")[2].partition(":")[0])
            except ConfigError as error:
                return str(error)

        return set(run_ranks(program, 3))

    assert meet(["a/1", "a/2", "b/1"], False) == {False}
    assert meet(["a/1", "a/2", "a/3"], True) == {False}, "allowed, and nobody does"
    assert meet(["a/1:x", "a/2", "a/1:y"], False) == {True}, "two parts of one"
    (told,) = meet(["a/1:x", "b/2", "a/1:y"], False)
    assert "on one host" in told
    (told,) = meet(["a/1", "a/2", "a/1"], False)
    assert "ranks 0 and 2 have the same GPU (a/1)" in told
    assert meet(["a/1", "a/2", "a/1"], True) == {True}
    (told,) = meet(["a/1", "b/1", "a/1"], True)
    assert "on one host" in told


def test_mpi_is_not_in_this_torch():
    """Asked for, it is said, also in a world of one."""
    with pytest.raises(ConfigError, match=r"expected a torch that was built with MPI, got .* without"):
        connect(World(), mpi=True)
