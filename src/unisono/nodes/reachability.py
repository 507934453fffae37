"""Who reaches whom: every host opens a port, and every other probes.

Gloo and nccl connect all pairs of ranks; a pair that cannot would show up minutes later, as a timeout without a name.
"""

import contextlib
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import final

from unisono.nodes.network import Interface, explain

_KNOCK_S = 5.0
_MOST_THREADS = 64


@final
class ProbePort:
    """A port that takes connections and says nothing; the kernel answers for us."""

    def __init__(self, interface: Interface) -> None:
        family = socket.AF_INET6 if ":" in interface.address else socket.AF_INET
        self._listener = socket.create_server((interface.address, 0), family=family, backlog=1024)
        self._listener.setblocking(False)

    @property
    def port(self) -> int:
        """Its number."""
        return int(self._listener.getsockname()[1])

    def sweep(self) -> None:
        """Drop the connections that have come, so that there is room for more."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._listener.accept()[0].close()

    def close(self) -> None:
        """Close it; safe to call twice."""
        self._listener.close()


def probe(own: Interface, probe_ports: Mapping[int, tuple[str, int]]) -> dict[str, str]:
    """Return why probe ports cannot be reached from an interface, by their key in words; empty where all can."""

    def try_one(probe_port: tuple[str, int]) -> str:
        try:
            socket.create_connection(probe_port, timeout=_KNOCK_S, source_address=(own.address, 0)).close()
        except OSError as error:
            return explain(error)
        return ""

    with ThreadPoolExecutor(max(1, min(_MOST_THREADS, len(probe_ports)))) as threads:
        answers = zip(probe_ports, threads.map(try_one, probe_ports.values()), strict=True)
        return {str(index): why for index, why in answers if why}
