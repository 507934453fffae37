"""Coded messages between ranks: the bits of the tree, fewer bytes, one mode on all ranks."""

import pytest

from collectives.codec_programs import exchange_in_all_modes
from forks import run_forked


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_codec_changes_bytes_and_no_bit(world_size):
    """Sums are the tree's in every mode, also with little room; planes send fewer bytes; unequal: refused."""
    for seen in run_forked(exchange_in_all_modes, world_size):
        steps = {mode: seen[mode] for mode in ("none", "planes", "auto")}
        assert all(is_tree for found in steps.values() for is_tree, _ in found)
        plain, coded = ([num_bytes for _, num_bytes in steps[mode]] for mode in ("none", "planes"))
        assert len(set(plain)) == 1
        assert all(1.3 * less < more for less, more in zip(coded, plain, strict=True))
        assert [num_bytes for _, num_bytes in steps["auto"]][:2] == plain[:2]  # measured as they are
        assert steps["auto"][2][1] in (plain[2], coded[2])
        room = seen["room"]
        assert all(is_tree for is_tree, _ in room.values())
        assert room["none 2"][1] < 0.6 * room["none 12"][1]  # two buckets are there at once, not six
        assert room["planes 2"][1] == room["none 2"][1]
        assert seen["unequal"].startswith("RankDivergence: ")
        assert "codec planes" in seen["unequal"]
