"""The transport of ranks on several hosts: shared memory inside a host, a process group between hosts.

The sum of the canonical tree has the same bits as over any other transport, since a host's ranks host consecutive
replicas: `speakers` says who adds up what. Of a buffer of S bytes, a host of L out of M ranks sends and receives as
much as one rank would, not as much as L, in pieces that are on their way in both directions at once (`exchange`).
"""

import contextlib
import warnings
from collections.abc import Sequence
from typing import final

from torch import Tensor

from unisono.collectives.process_groups.default_group import gloo_on_cpu
from unisono.collectives.process_groups.exchange import PieceExchange
from unisono.collectives.process_groups.exchanges import Exchanges
from unisono.collectives.process_groups.speakers import Hosts, group_by_host, host_of
from unisono.collectives.process_groups.within_host import WithinHost
from unisono.collectives.shm.board import SharedBoard
from unisono.collectives.shm.transport import SLOT_BYTES, share_board
from unisono.collectives.transport import Transport


@final
class HostsTransport(Transport):
    """Joins ranks of several hosts; sums leave a host once.

    Args:
        below: Joins all ranks by gloo; closed with this one.
        hosts: The ranks of each host.
        within: The sums inside this one; closed with this transport.
    """

    def __init__(self, below: Transport, hosts: Hosts, within: WithinHost) -> None:
        self.rank, self.world_size = below.rank, below.world_size
        self.hosts, self.host = hosts, host_of(hosts, below.rank)
        self.bytes_sent = 0
        self._below, self._within = below, within
        shared = None if len(hosts[self.host]) == 1 else within
        self._exchanges = Exchanges(lambda: PieceExchange(self, gloo_on_cpu, hosts, shared))
        self.make_exchange, self.tree_reducer = self._exchanges.new, self._exchanges.reduce

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        self._below.all_to_all(send, send_splits, recv, recv_splits)
        self.bytes_sent += (send.numel() - send_splits[self.rank]) * send.element_size()

    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        self._below.all_gather(send, recv)
        self.bytes_sent += send.nbytes * (self.world_size - 1)

    def close(self) -> None:
        """Leave the boards and the transport below."""
        self._exchanges.close()
        self._within.close()
        self._below.close()


def over_hosts(below: Transport, names: Sequence[str], *, timeout_s: float) -> Transport:
    """Return a transport that uses shared memory inside hosts; `below` itself where that gains nothing or cannot be.

    All ranks call it and get the same kind. Warns, on rank 0, where ranks of one host are not consecutive.
    """
    hosts = group_by_host(names)
    if hosts is None:
        if below.rank == 0:
            warnings.warn(
                f"the ranks of a host are not consecutive ({', '.join(names)}): gradients take the way between hosts "
                "rank by rank. Hint: number the ranks host by host (srun --distribution=block).",
                stacklevel=2,
            )
        return below
    if len(hosts) < 2 or len(hosts) == below.world_size or below.make_exchange is None:  # None: not gloo
        return below
    within = share_within(below, hosts, timeout_s=timeout_s)
    return below if within is None else HostsTransport(below, hosts, within)


def share_within(below: Transport, hosts: Hosts, *, timeout_s: float) -> WithinHost | None:
    """Return what the ranks of this host do in memory that they share; None, on all ranks, where some cannot.

    All ranks call it.
    """
    boards: list[SharedBoard] = []
    with contextlib.ExitStack() as still:
        for _ in range(2):
            board = share_board(below, hosts, timeout_s=timeout_s, slot_bytes=SLOT_BYTES)
            if board is None:
                return None
            still.callback(board.close)
            boards.append(board)
        still.pop_all()
    return WithinHost(hosts, below.rank, *boards)
