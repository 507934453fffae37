"""Probing finds out which host reaches which, and says why not."""

import contextlib

from unisono.nodes.network import Interface
from unisono.nodes.reachability import ProbePort, probe

HERE = Interface("lo", "127.0.0.1")


def test_open_and_shut_doors():
    """An open probe port is silent, however often one probes; one that is shut is named with the reason."""
    with contextlib.closing(ProbePort(HERE)) as open_door, contextlib.closing(ProbePort(HERE)) as other:
        shut = other.port
        other.close()
        probe_ports = {1: ("127.0.0.1", open_door.port), 2: ("127.0.0.1", shut)}
        for _ in range(3):
            found = probe(HERE, probe_ports)
            open_door.sweep()
            assert list(found) == ["2"]
            assert found["2"].startswith("nothing listens there")
        assert probe(HERE, {}) == {}
