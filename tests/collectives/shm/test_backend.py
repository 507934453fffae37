"""The `shm` backend under torch.distributed's own functions and DDP, between real processes."""

import pytest

from collectives.backend_programs import FUNCTIONS, REFUSED, VARIANTS, execute
from forks import run_forked
from ranks import once

SIZES = [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]


@once
def launched(world_size):
    """One launch for each world size."""
    return run_forked(execute, world_size)


@pytest.mark.parametrize("world_size", SIZES)
def test_functions_give_what_gloo_gives(world_size):
    """Every function of torch.distributed gives what it gives over gloo."""
    assert len(FUNCTIONS) > 15
    for rank, seen in enumerate(launched(world_size)):
        assert seen["name"] == "shm"
        assert seen["place"] == [rank, world_size]
        assert seen["differs"] == []


@pytest.mark.parametrize("world_size", SIZES)
def test_objects(world_size):
    """Objects of different sizes arrive."""
    everything = [{"rank": rank, "text": "x" * 50 * rank} for rank in range(world_size)]
    for rank, seen in enumerate(launched(world_size)):
        at_last = [11 * other for other in range(world_size)] if rank == world_size - 1 else [None] * world_size
        assert seen["objects"] == [everything, ["from", 0], at_last, [f"part {rank}"]]


@pytest.mark.parametrize("world_size", SIZES)
def test_handles(world_size):
    """Operations that are not waited for run in order, and their handles and futures hold results and errors."""
    for seen in launched(world_size):
        handles = seen["handles"]
        assert handles["waited"] == [True] * 5
        assert handles["sums"] == [0.0] * 5
        assert (handles["then"], handles["result"]) == (0.0, 0.0)
        assert handles["completed"] == [True] * 5
        assert handles["barrier"]
        assert handles["inferred"] == [float(world_size)] * 2
        assert handles["failed"].startswith("RankDivergence: ")
        assert "RankDivergence: [rank " in handles["failed_future"]
        assert not handles["is_success"]


@pytest.mark.parametrize("world_size", SIZES)
def test_subgroups(world_size):
    """Groups of some ranks work apart from each other."""
    evens = list(range(0, world_size, 2))
    for rank, seen in enumerate(launched(world_size)):
        groups = seen["subgroups"]
        assert groups.get("ends") == (
            [world_size + 1.0, world_size - 1.0, "shm"] if rank in (0, world_size - 1) else None
        )
        total = float(sum(evens) + len(evens))
        assert groups.get("evens") == ([total, float(evens[-1]), "shm"] if rank in evens else None)


@pytest.mark.parametrize("world_size", SIZES)
def test_destroyed_subgroups(world_size):
    """A group can be destroyed or aborted by itself; the default group works on."""
    for seen in launched(world_size):
        assert seen["destroyed"] == [float(world_size**2), False] * 2


@pytest.mark.parametrize("world_size", SIZES)
def test_names(world_size):
    """The group tells its devices, store and names as torch's own groups do, also through torch's private questions."""
    for seen in launched(world_size):
        names = seen["names"]
        assert names["devices"] == ["cpu", "cpu", "cpu"]
        assert names["carrier"] and names["found"]
        assert names["no carrier"].startswith("RuntimeError: No backend type associated with device type cuda")
        assert names["told"] == "two names"


@pytest.mark.parametrize("world_size", SIZES)
def test_messages(world_size):
    """Ranks send to each other: large ones both ways at once, out of order by tag, strided, empty, in a batch."""
    for rank, seen in enumerate(launched(world_size)):
        messages = seen["messages"]
        assert messages["around"]
        assert messages["batch"]
        assert messages["waited"] == [True, True]
        if rank == 1:
            assert messages["pair"] == [[1.0, 1.0], 2.0, [0.0, 1.0, 2.0, 3.0, 4.0], 0.0, ["hello", 1]]
            assert messages["other_shape"].startswith("RankDivergence: [rank 1/")
            assert "recv of (5,) float32 from rank 0, tag 7: the message holds (4,) float32" in messages["other_shape"]


@pytest.mark.parametrize("world_size", SIZES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_ddp(world_size, variant):
    """DDP trains to the same weights on all ranks; with two ranks, to those of gloo (a sum of two has one order)."""
    ranks = launched(world_size)
    weights = ranks[0]["ddp"][variant]
    assert all(seen["ddp"][variant] == weights for seen in ranks)
    if world_size == 2:
        assert all(seen["ddp_gloo"][variant] == weights for seen in ranks)


@pytest.mark.parametrize("world_size", SIZES)
def test_ddp_does_not_depend_on_its_buckets(world_size):
    """Views, a static graph and small buckets give the same bits; the control: another batch of steps does not."""
    weights = launched(world_size)[0]["ddp"]
    assert weights["plain"] == weights["views"] == weights["static"] == weights["small buckets"]
    assert weights["plain"] != weights["no_sync"]


@pytest.mark.parametrize("world_size", SIZES)
def test_join(world_size):
    """Ranks with different numbers of batches end with the same weights."""
    assert len({seen["join"] for seen in launched(world_size)}) == 1


@pytest.mark.parametrize("world_size", SIZES)
def test_ddp_verifies_parameters(world_size):
    """Where rank 0 has another model, DDP says so on the others, and rank 0 learns that they have stopped."""
    first, *others = launched(world_size)
    assert first["other_model"][0].startswith("RankDivergence: [rank 0/")
    for seen in others:
        assert "appears not to match sizes of the same param in process 0" in seen["other_model"][0]
        assert seen["other_model"][1].startswith("RankDivergence: ")


@pytest.mark.parametrize("world_size", SIZES)
def test_mismatch_is_an_error_on_every_rank(world_size):
    """Other shapes are an error on every rank, where gloo would abort the process."""
    for rank, seen in enumerate(launched(world_size)):
        assert seen["mismatch"].startswith(f"RankDivergence: [rank {rank}/{world_size}]")
        assert "rank 0: all_reduce SUM of (4,) float32; rank 1: all_reduce SUM of (3,) float32" in seen["mismatch"]
        for name in ("other_call", "other_list", "other_later"):
            assert seen[name].startswith(("RankDivergence: ", "ConfigError: ")), seen[name]
        assert (
            "rank 0: broadcast of (3,) float32 from rank 0; rank 1: all_reduce SUM of (3,) float3" in seen["other_call"]
        )
        assert "rank 0: all_reduce SUM of (3,) float32; rank 1: barrier" in seen["other_later"]
        assert "(3,) float32" in seen["other_list"]


@pytest.mark.parametrize("world_size", SIZES)
def test_what_is_refused(world_size):
    """What the backend cannot do is a `ConfigError` that says why."""
    for seen in launched(world_size):
        assert set(seen["refused"]) == set(REFUSED)
        assert all(message.startswith("ConfigError: ") for message in seen["refused"].values())
        assert "beside a backend written in Python. Hint: " in seen["again"]["several"]


@pytest.mark.parametrize("world_size", SIZES)
def test_a_group_made_again(world_size):
    """A program may destroy its group and make another one at the same store."""
    assert all(seen["again"]["sums"] == [float(world_size)] * 3 for seen in launched(world_size))


@pytest.mark.parametrize("world_size", SIZES)
def test_a_late_rank(world_size):
    """A monitored barrier says within its own time which rank has not come."""
    *waiting, late = [seen["again"]["late"] for seen in launched(world_size)]
    assert late == ""
    for message in waiting:
        assert message.startswith("PeerLost: ")
        assert f"rank {world_size - 1} (process " in message and "has not come within 0.2 s" in message


@pytest.mark.parametrize("world_size", SIZES)
def test_a_lost_rank(world_size):
    """The ranks left behind get `PeerLost` out of DDP's backward pass, and from everything they do afterwards."""
    *left, gone = launched(world_size)
    assert gone["gone"] == {}
    for seen in left:
        errors = seen["gone"]
        assert all(f"rank {world_size - 1} (process " in message for message in errors.values())
        assert errors.pop("future").startswith("RuntimeError: ")
        assert all(message.startswith("PeerLost: ") for message in errors.values())
