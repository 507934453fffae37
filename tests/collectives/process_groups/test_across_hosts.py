"""Ranks on several hosts: shared memory inside each, gloo between them, and the bits of the tree."""

import pytest

from collectives.hosts_programs import LAYOUTS, execute
from forks import run_forked
from ranks import once, run_threads
from unisono.collectives.process_groups.across_hosts import over_hosts


@once
def launched(world_size):
    """One launch for each world size; the hosts are names."""
    return run_forked(execute, world_size)


def check(ranks, world_size):
    for names in LAYOUTS[world_size]:
        found = [seen["layouts"][names] for seen in ranks]
        assert [seen["class"] for seen in found] == ["HostsTransport"] * world_size
        assert all(seen["wrong"] == [] and seen["right"] for seen in found)
        assert any(seen["serial_differs"] for seen in found)  # the control: another order would be seen
        assert [seen["crossed"] for seen in found] == [seen["expected"] for seen in found]
        assert sum(seen["crossed"] for seen in found) < sum(seen["flat"] for seen in found)


def test_same_bits_as_rank_by_rank():
    """Every layout, placement and short batch: the bits of the tree and of the flat way, with fewer bytes across."""
    check(launched(4), 4)


def check_exchange(ranks, world_size):
    for names in LAYOUTS[world_size]:
        found = [seen["layouts"][names] for seen in ranks]
        for seen in found:
            report = seen["exchange"]
            assert (report["class"], report["wrong"]) == ("PieceExchange", [])
            assert report["num_checked"] > 50
            assert [case for case, (sent, expected, _) in report["sent"].items() if sent != expected] == []
            assert seen["left_behind"] == {"right": True}
            assert 0 not in seen["coded"]["planes"] + seen["coded"]["auto"]
            plain, coded = seen["coded"]["none"], seen["coded"]["planes"]
            assert all(1.3 * less < more for less, more in zip(coded, plain, strict=True))
        assert any(seen["exchange"]["serial_differs"] for seen in found)


def test_buckets_in_pieces_between_hosts():
    """Any placement and short batch, coded or not: the tree's bits and the planned bytes; a step given up is gone."""
    check_exchange(launched(4), 4)


def check_rounded(ranks, world_size):
    for names in LAYOUTS[world_size]:
        for seen in ranks:
            for kind, report in seen["layouts"][names]["rounded"].items():
                assert (kind, report["right"], report["leaves alone"]) == (kind, [True, True], False)
                assert report["sent"] == [report["expected"]] * 2


def test_rounded_sums_between_hosts():
    """Whoever adds a node rounds it, in whatever pieces: the bits of one process; the short form is what crosses."""
    check_rounded(launched(4), 4)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [4, 8])
def test_a_host_sends_one_partial(replicas):
    """2 x 2 ranks: a host of four or eight replicas sends one partial sum and its results, not those of two ranks."""
    sent = [seen["layouts"]["aabb"]["exchange"]["sent"][f"{[replicas // 4] * 4} {replicas}"] for seen in launched(4)]
    whole = sent[0][2]
    # Half of the buffer to the other host's owners, and the results of the own half.
    assert [sum(counted for counted, _, _ in sent[host : host + 2]) for host in (0, 2)] == [whole] * 2


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [3, 5])
def test_same_bits_as_rank_by_rank_on_others(world_size):
    """As above, with three and five ranks."""
    ranks = run_forked(execute, world_size)
    check(ranks, world_size)
    check_exchange(ranks, world_size)
    check_rounded(ranks, world_size)


def test_one_rank_a_host():
    """Where no host has two ranks there is nothing to share."""
    kinds = run_threads(lambda transport: type(over_hosts(transport, "abc", timeout_s=5)).__name__, 3)
    assert kinds == ["LoopbackTransport"] * 3


def test_half_the_bytes_across():
    """2 x 2 ranks: half of what crosses rank by rank; 3 + 1: the three send together what one of them would."""
    crossed = {names: [seen["layouts"][names]["crossed"] for seen in launched(4)] for names in ("aabb", "aaab")}
    flat = {names: [seen["layouts"][names]["flat"] for seen in launched(4)] for names in crossed}
    assert sum(crossed["aabb"]) * 2 == sum(flat["aabb"])
    num_bytes = 4 * 5056  # 5003 elements, padded
    # Replicas 0-5 are two subtrees, (0, 4) and (4, 6): two partials of one slice, and three results.
    assert sum(crossed["aaab"][:3]) == (2 + 3) * num_bytes // 4 < sum(flat["aaab"][:3])
    assert crossed["aaab"][3] == (3 + 1) * num_bytes // 4


def test_one_name_is_one_host():
    """Ranks that all have one name share one board; without a name, a host is told by its own."""
    for seen in launched(4):
        assert seen["alike"] == "ShmTransport"
        assert seen["own"]


@pytest.mark.slow
def test_ranks_in_turn_fall_back():
    """Where a host's ranks are not consecutive, the way is rank by rank, and rank 0 says so and what to do."""
    first, *others = launched(4)
    assert all(seen["in turn"] == "ProcessGroupTransport" for seen in launched(4))
    assert "not consecutive (a, b, a, b)" in first["warned"][0]
    assert "Hint: " in first["warned"][0]
    assert all(seen["warned"] == [] for seen in others)


def test_disagreement_is_an_error_on_every_rank():
    """Another size, call or step on one rank: all ranks say what each does, where gloo would end the process."""
    for rank, seen in enumerate(launched(4)):
        for name in ("other_size", "other_call", "other_step"):
            assert seen[name].startswith(f"RankDivergence: [rank {rank}/4] the ranks are doing different things")
        assert (
            "rank 0: step 7: tree_all_reduce of 320 x float32, 4 leaves; rank 1: step 7: tree_all_reduce of 128 x"
            in (seen["other_size"])
        )
        assert "rank 1: step 7: barrier" in seen["other_call"]
        assert "rank 1: step 9: tree_all_reduce of 128 x float32, 4 leaves; rank 2: step 8" in seen["other_step"]


def test_a_rank_that_goes_away():
    """The others get `PeerLost`, on its own host and elsewhere."""
    *left, gone = launched(4)
    assert "lost" not in gone
    assert all(seen["lost"].startswith("PeerLost: [rank ") for seen in left)
