"""Knocking finds out who reaches whom, and says why not."""

import contextlib

from unisono.nodes.network import Interface
from unisono.nodes.reachability import Door, knock

HERE = Interface("lo", "127.0.0.1")


def test_open_and_shut_doors():
    """An open door is silent, however often one knocks; one that is shut is named with the reason."""
    with contextlib.closing(Door(HERE)) as open_door, contextlib.closing(Door(HERE)) as other:
        shut = other.port
        other.close()
        doors = {1: ("127.0.0.1", open_door.port), 2: ("127.0.0.1", shut)}
        for _ in range(3):
            found = knock(HERE, doors)
            open_door.sweep()
            assert list(found) == ["2"]
            assert found["2"].startswith("nothing listens there")
        assert knock(HERE, {}) == {}
