"""Ranks in processes of their own, joined by torch.distributed (gloo on CPU, nccl on CUDA).

`connect` makes the process group of a `World`, without any listener outside this host when all ranks are on it; a
program that has already called ``dist.init_process_group`` is joined as it is.
"""

import itertools
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import final
from urllib.parse import urlparse

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from unisono.collectives.across_hosts import name_of_this_host, over_hosts
from unisono.collectives.autotune import settle_plan
from unisono.collectives.group import GroupOwner, lost_peers_named
from unisono.collectives.loopback import LoopbackTransport
from unisono.collectives.shm import over_shared_memory
from unisono.collectives.transport import Transport
from unisono.errors import PeerLost, WorldError
from unisono.launchers.leaving import leave_groups_at_exit
from unisono.world import World, default_cache

_connections = itertools.count()
_stores: dict[tuple[str, int, int], Store] = {}  # by meeting place; see `store_of`


@final
class ProcessGroupTransport(Transport):
    """Moves tensors through the default torch.distributed process group."""

    def __init__(self, *, owns_group: bool) -> None:
        self._owner = GroupOwner(owns_group=owns_group)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.bytes_sent = 0

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        """See `Transport.all_to_all`."""
        self.bytes_sent += (send.numel() - send_splits[self.rank]) * send.element_size()
        with self._translated("all_to_all"):
            dist.all_to_all_single(recv, send, recv_splits, send_splits)

    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        """See `Transport.all_gather`."""
        self.bytes_sent += send.nbytes * (self.world_size - 1)
        # torch 2.13 renamed all_gather_into_tensor; the old name warns there, the new one is missing before.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        with self._translated("all_gather"):
            gather(recv, send)

    def close(self) -> None:
        """Destroy the process group if `connect` made it."""
        self._owner.close()

    def _translated(self, operation: str) -> AbstractContextManager[None]:
        return lost_peers_named(self.rank, self.world_size, operation)


def connect(
    world: World,
    *,
    device: str = "cpu",
    timeout_s: float = 300.0,
    share_memory: bool = True,
    host: str | None = None,
) -> Transport:
    """Join the ranks of `world` and return this rank's transport; all ranks call it, and it blocks until they have.

    Args:
        world: Who this process is.
        device: ``cpu`` (gloo) or ``cuda`` (nccl for CUDA tensors, gloo for control messages).
        timeout_s: Longest wait for another rank in one collective.
        share_memory: Go through shared memory between CPU processes of one host: alone where all ranks are on it, else
            inside each host (`HostsTransport`).
        host: Name of this rank's host; None finds it out. Ranks with one name must be able to share memory.

    Raises:
        WorldError: The process group that the program has already made has another size or rank.
        PeerLost: The other ranks did not come in time.
    """
    if dist.is_initialized():
        if (dist.get_rank(), dist.get_world_size()) != (world.rank, world.world_size):
            raise WorldError(
                f"the process group has rank {dist.get_rank()} of {dist.get_world_size()}, the environment "
                f"(of {world.launcher!r}) rank {world.rank} of {world.world_size}. "
                "Hint: initialise it from the environment."
            )
        leave_groups_at_exit()
        return _fastest(world, ProcessGroupTransport(owns_group=False), device, timeout_s, share_memory, host)
    if world.world_size == 1:
        return LoopbackTransport()
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    timeout = timedelta(seconds=timeout_s)
    try:
        # Keys of its own: a second group of this process must not meet at what the first has left in the store.
        store = PrefixStore(f"unisono/{next(_connections)}", store_of(world, timeout))
        dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.world_size, timeout=timeout)
    except WorldError:
        raise
    except RuntimeError as error:
        raise PeerLost(
            f"[rank {world.rank}/{world.world_size}] the ranks did not meet at {world.rendezvous} "
            f"within {timeout_s:g} s: {error}"
        ) from error
    leave_groups_at_exit()
    return _fastest(world, ProcessGroupTransport(owns_group=True), device, timeout_s, share_memory, host)


def _fastest(
    world: World, group: Transport, device: str, timeout_s: float, share_memory: bool, host: str | None
) -> Transport:
    if not share_memory or device != "cpu" or world.world_size == 1:
        return group
    if host is not None or not world.is_single_host:
        names = group.all_gather_json(host or name_of_this_host())
        if len(set(names)) > 1:
            return over_hosts(group, names, timeout_s=timeout_s)
    transport = over_shared_memory(group, timeout_s=timeout_s)
    if transport.board is not None:
        settle_plan(transport, default_cache())
    return transport


def store_of(world: World, timeout: timedelta) -> Store:
    """Return the store at which the ranks of a world meet: one for each meeting place in this process.

    The last process to drop a FileStore removes its file, and the server of a TCPStore ends with rank 0's: a process
    that closed and came back at once would meet at what another one, still closing, is about to take away.

    Raises:
        WorldError: The rendezvous is none that is known.
    """
    if world.rendezvous == "env://":
        store: Store = next(rendezvous("env://", world.rank, world.world_size, timeout=timeout))[0]
        return store
    key = (world.rendezvous, world.rank, world.world_size)
    if key not in _stores:
        where = urlparse(world.rendezvous)
        if where.scheme == "file":
            _stores[key] = FileStore(where.path, world.world_size)
        elif where.scheme == "tcp" and where.hostname and where.port:
            _stores[key] = TCPStore(where.hostname, where.port, world.world_size, world.is_leader, timeout)
        else:
            raise WorldError(f"expected a rendezvous file://PATH or tcp://HOST:PORT, got {world.rendezvous!r}.")
    _stores[key].set_timeout(timeout)
    return _stores[key]


def device_of(world: World, asked: str | None = None) -> torch.device:
    """Return this rank's device: the asked one, else its own GPU where there are enough, else the CPU."""
    if asked is None:
        asked = "cuda" if torch.cuda.device_count() >= world.local_world_size else "cpu"
    return torch.device("cuda", world.local_rank) if asked == "cuda" else torch.device(asked)
