"""The transport of ranks on several hosts: shared memory inside a host, a process group between hosts.

The sum of the canonical tree has the same bits as over any other transport, since a host's ranks host consecutive
replicas: `hosts` says who adds up what. Of a buffer of S bytes, a host of L out of M ranks sends and receives as much
as one rank would, not as much as L.
"""

import warnings
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from unisono.collectives.exchange import OneByOne
from unisono.collectives.process_groups.speakers import Hosts, carried, carrier, group_by_host, host_nodes, host_of
from unisono.collectives.shm.board import SharedBoard
from unisono.collectives.shm.operations import Collectives
from unisono.collectives.shm.transport import SLOT_BYTES, share_board
from unisono.collectives.transport import Transport
from unisono.collectives.tree import Node, combine, owned_nodes


@final
class HostsTransport(Transport):
    """Joins ranks of several hosts.

    Args:
        below: Joins all ranks; closed with this one.
        hosts: The ranks of each host.
        board: Of this host's ranks; closed with this one.

    Attributes:
        bytes_across: Payload bytes this rank has handed to ranks of other hosts.
    """

    def __init__(self, below: Transport, hosts: Hosts, board: SharedBoard) -> None:
        self.rank, self.world_size = below.rank, below.world_size
        self.hosts, self.host = hosts, host_of(hosts, below.rank)
        self.bytes_sent = self.bytes_across = 0
        self._below, self._local_board = below, board
        self._local = Collectives(board)
        self.tree_reducer = self.reduce
        self.make_exchange = lambda: OneByOne(self, is_overlapped=True)

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        self._below.all_to_all(send, send_splits, recv, recv_splits)
        item = send.element_size()
        self.bytes_sent += (send.numel() - send_splits[self.rank]) * item
        inside = self.hosts[self.host]
        self.bytes_across += sum(count for rank, count in enumerate(send_splits) if rank not in inside) * item

    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        self._below.all_gather(send, recv)
        self.bytes_sent += send.nbytes * (self.world_size - 1)
        self.bytes_across += send.nbytes * (self.world_size - len(self.hosts[self.host]))

    def reduce(
        self, partials: Sequence[tuple[Node, Tensor]], placement: Sequence[range], leaves: int, out: Tensor
    ) -> None:
        """Add the partial sums of all ranks in canonical order; see `reduce.tree_all_reduce`."""
        inside, chunk = self.hosts[self.host], len(out) // self.world_size
        crossing = host_nodes(self.hosts, placement, leaves)
        mine = carried(self.hosts, self.rank)
        sums = self._add_up_inside(partials, placement, leaves, out, crossing[self.host])
        # To the owners: sums is (nodes, slices carried, chunk); each owner gets (nodes, chunk).
        sent = {part: sums[:, index] for index, part in enumerate(mine) if part not in inside}
        senders = {carrier(self.hosts, host, self.rank): host for host in range(len(self.hosts)) if host != self.host}
        arrived = self._exchange(sums, {rank: len(crossing[host]) for rank, host in senders.items()}, sent)
        values = dict(zip(crossing[self.host], sums[:, mine.index(self.rank)], strict=True))
        for rank, rows in arrived.items():
            values |= zip(crossing[senders[rank]], rows, strict=True)
        total = combine(values, leaves, torch.add)
        # Back to the carriers, and from them to all.
        back = self._exchange(total, dict.fromkeys(sent, 1), dict.fromkeys(senders, total))
        results = torch.stack([total if part == self.rank else back[part][0] for part in mine])
        lists = [carried(self.hosts, rank) for rank in inside]
        gathered = [out.new_empty(len(parts), chunk) for parts in lists]
        self._local.all_gather(gathered, results)
        whole = out.view(self.world_size, chunk)
        for parts, values_of in zip(lists, gathered, strict=True):
            whole[parts] = values_of

    def close(self) -> None:
        """Leave the board and the transport below."""
        self._local_board.close()
        self._below.close()

    def _add_up_inside(
        self, partials: Sequence[tuple[Node, Tensor]], placement: Sequence[range], leaves: int, like: Tensor,
        wanted: list[Node],
    ) -> Tensor:  # fmt: skip
        """Return the host's sums of the slices that this rank carries: (subtrees, slices, chunk)."""
        inside, chunk = self.hosts[self.host], len(like) // self.world_size
        whole = [partial.view(self.world_size, chunk) for _, partial in partials]
        mine = carried(self.hosts, self.rank)
        nothing = like.new_empty(0, chunk)
        parts = [torch.cat([rows[carried(self.hosts, rank)] for rows in whole] or [nothing]) for rank in inside]
        owned = [owned_nodes(tuple(placement), leaves)[rank] for rank in inside]
        outs = [like.new_empty(len(found) * len(mine), chunk) for found in owned]
        self._local.all_to_all(outs, parts)
        arrived = {
            node: values
            for found, out in zip(owned, outs, strict=True)
            for node, values in zip(found, out.view(len(found), len(mine), chunk), strict=True)
        }
        sums = [combine(arrived, leaves, torch.add, root=node) for node in wanted]
        return torch.stack(sums) if sums else like.new_empty(0, len(mine), chunk)

    def _exchange(self, like: Tensor, room: dict[int, int], parcels: dict[int, Tensor]) -> dict[int, Tensor]:
        """Send parcels to some ranks, and return those of others: so many rows each, of the width of `like`."""
        ranks = range(self.world_size)
        send_splits = [parcels[rank].numel() if rank in parcels else 0 for rank in ranks]
        recv_splits = [room.get(rank, 0) * like.shape[-1] for rank in ranks]
        ordered = [parcels[rank].reshape(-1) for rank in ranks if rank in parcels]
        recv = like.new_empty(sum(recv_splits))
        self.all_to_all(torch.cat([like.new_empty(0), *ordered]), send_splits, recv, recv_splits)
        pieces = recv.split(recv_splits)
        return {rank: pieces[rank].view(count, -1) for rank, count in room.items() if count}


def over_hosts(below: Transport, names: Sequence[str], *, timeout_s: float) -> Transport:
    """Return a transport with shared memory inside each host; `below` itself where that cannot be, or would not help.

    All ranks call it and get the same kind. Warns, on rank 0, where ranks of one host are not consecutive.

    Args:
        below: Joins ranks of several hosts.
        names: Of each rank's host.
        timeout_s: Longest wait for a rank that lives.
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
    if len(hosts) < 2 or len(hosts) == below.world_size:
        return below
    board = share_board(below, hosts, timeout_s=timeout_s, slot_bytes=SLOT_BYTES)
    return below if board is None else HostsTransport(below, hosts, board)
