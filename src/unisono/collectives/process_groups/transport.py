"""Ranks in processes of their own, joined by torch.distributed (gloo on CPU, nccl on CUDA).

`connect` makes the process group of a `World`, without any listener outside this host when all ranks are on it; a
program that has already called ``dist.init_process_group`` is joined as it is.
"""

import itertools
import os
from datetime import timedelta
from typing import TYPE_CHECKING, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from unisono.collectives.loopback import LoopbackTransport
from unisono.collectives.process_groups.default_group import GroupOwner, gloo_on_cpu, lost_peers_named
from unisono.collectives.process_groups.exchanges import Exchanges
from unisono.collectives.transport import TIMEOUT_S, Transport
from unisono.determinism import devices
from unisono.environment import default_cache, pin_workspace
from unisono.errors import ConfigError, PeerLost, WorldError
from unisono.system.devices import SHARE_VARIABLE, find_shared, own_index
from unisono.system.leaving import leave_groups_at_exit
from unisono.system.processes import name_of_this_host
from unisono.world import World

if TYPE_CHECKING:
    from unisono.collectives.process_groups.exchange import PieceExchange

NO_MPI = (
    "expected a torch that was built with MPI, got {} without: its wheels have none. Hint: mpirun starts ranks all the "
    "same (mpirun -n 4 python SCRIPT), which then talk through shared memory, gloo or NCCL: leave the transport at "
    "'auto'. For the mpi backend itself, build torch from source on a machine with MPI."
)
"""What to say when MPI is asked for and missing."""

_connections = itertools.count()


@final
class ProcessGroupTransport(Transport):
    """Moves tensors through the default torch.distributed process group."""

    def __init__(self, *, owns_group: bool) -> None:
        self._owner = GroupOwner(owns_group=owns_group)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.bytes_sent = 0
        self._exchanges = Exchanges(self._new_exchange)
        if self.world_size > 1 and gloo_on_cpu() is not None:
            self.make_exchange, self.tree_reducer = self._exchanges.new, self._exchanges.reduce

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        self.bytes_sent += (send.numel() - send_splits[self.rank]) * send.element_size()
        with lost_peers_named(self.rank, self.world_size, "all_to_all"):
            dist.all_to_all_single(recv, send, recv_splits, send_splits)

    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        self.bytes_sent += send.nbytes * (self.world_size - 1)
        # torch 2.13 renamed all_gather_into_tensor; the old name warns there, the new one is missing before.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        with lost_peers_named(self.rank, self.world_size, "all_gather"):
            gather(recv, send)

    def close(self) -> None:
        """Destroy the process group if `connect` made it."""
        self._exchanges.close()
        self._owner.close()

    def _new_exchange(self) -> "PieceExchange":
        from unisono.collectives.process_groups.exchange import PieceExchange  # what a board's ranks do not load

        return PieceExchange(self, gloo_on_cpu)


def connect(
    world: World,
    *,
    device: str = "cpu",
    timeout_s: float = TIMEOUT_S,
    share_memory: bool = True,
    host: str | None = None,
    mpi: bool = False,
) -> Transport:
    """Join the ranks of `world` and return this rank's transport; all ranks call it, and it blocks until they have.

    Args:
        world: Who this process is.
        device: ``cpu`` (gloo) or a rank's ``cuda:INDEX`` (nccl for CUDA tensors, gloo for control messages), which
            becomes current.
        timeout_s: Longest wait for another rank in one collective.
        share_memory: Go through shared memory between CPU processes of one host: alone where all ranks are on it, else
            inside each host (`HostsTransport`).
        mpi: Move everything with MPI, in a torch that was built with it.
        host: Name of this rank's host; None finds it out. Ranks with one name must be able to share memory.

    Raises:
        ConfigError: Ranks have the same GPU, and were not to share; or this torch has no MPI.
        WorldError: The process group that the program has already made has another size or rank; the ranks contradict
            each other about who they are; or something else listens where they are to meet.
        PeerLost: The other ranks did not come in time.
    """
    target = torch.device(device)
    if devices.is_gpu(target):
        pin_workspace()
        devices.make_current(target if target.index is not None else device_of(world, target.type))
    if mpi and not dist.is_mpi_available():
        raise ConfigError(NO_MPI.format(torch.__version__))
    owns_group = not dist.is_initialized()
    if not owns_group:
        if (dist.get_rank(), dist.get_world_size()) != (world.rank, world.world_size):
            raise WorldError(
                f"the process group has rank {dist.get_rank()} of {dist.get_world_size()}, the environment "
                f"(of {world.launcher!r}) rank {world.rank} of {world.world_size}. "
                "Hint: initialise it from the environment."
            )
    elif world.world_size == 1:
        return LoopbackTransport()
    elif mpi:
        dist.init_process_group("mpi")
        return ProcessGroupTransport(owns_group=True)
    else:
        _make_group(world, target, timeout_s)
    leave_groups_at_exit()
    group = ProcessGroupTransport(owns_group=owns_group)
    return _fastest(world, group, target.type, timeout_s, share_memory, host)


def _make_group(world: World, target: torch.device, timeout_s: float) -> None:
    from unisono.collectives.process_groups.roll_call import call_roll  # what a process alone does not load
    from unisono.collectives.process_groups.stores import meet

    timeout = timedelta(seconds=timeout_s)
    try:
        # Keys of its own: a second group of this process must not meet at what the first has left in the store.
        store = meet(world, f"unisono/{next(_connections)}", timeout)
        call_roll(store, world, f"process {os.getpid()} on {os.uname().nodename}", timeout_s)
        backend = devices.backend_of(target, is_shared=devices.is_gpu(target) and _is_shared(store, world, target.type))
        dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.world_size, timeout=timeout)
    except WorldError:
        raise
    except RuntimeError as error:
        raise PeerLost(
            f"[rank {world.rank}/{world.world_size}] the ranks did not meet at {world.rendezvous} "
            f"within {timeout_s:g} s: {error}"
        ) from error


def _is_shared(store: Store, world: World, kind: str) -> bool:
    """Whether two ranks compute on one card, by what they tell each other; collective."""
    own = devices.device_at(devices.module_of(kind).current_device(), kind)
    store.set(f"card/{world.rank}", f"{name_of_this_host()}/{devices.card(own)}")
    cards = [store.get(f"card/{rank}").decode() for rank in range(world.world_size)]
    return find_shared(cards) is not None


def _fastest(
    world: World, group: Transport, device: str, timeout_s: float, share_memory: bool, host: str | None
) -> Transport:
    if world.world_size == 1:
        return group
    if device in devices.KINDS:
        own = devices.device_at(devices.module_of(device).current_device(), device)
        if not check_own_devices(group, world, f"{name_of_this_host()}/{devices.identity(own)}", devices.card(own)):
            return group
    if not share_memory:
        return group
    if host is not None or not world.is_single_host:
        names = group.all_gather_json(host or name_of_this_host())
        if len(set(names)) > 1:
            from unisono.collectives.process_groups.across_hosts import over_hosts

            return over_hosts(group, names, timeout_s=timeout_s)
    from unisono.collectives.shm.autotune import settle_plan
    from unisono.collectives.shm.transport import over_shared_memory

    transport = over_shared_memory(group, timeout_s=timeout_s)
    if transport.board is not None:
        settle_plan(transport, default_cache())
    return transport


def check_own_devices(group: Transport, world: World, device: str, card: str) -> bool:
    """Refuse two ranks on one GPU, unless they are to share it; collective.

    Args:
        group: Joins the ranks.
        world: Who this process is.
        device: Its host and GPU, as no other has them.
        card: That the GPU is a part of, on its host.

    Returns:
        Whether two ranks compute on one card, which NCCL takes once.

    Raises:
        ConfigError: They are not to, or are on several hosts.
    """
    told = group.all_gather_json([device, card])
    names = [name for name, _ in told]
    problem = find_shared(names)
    if problem is not None and not world.shares_devices:
        raise ConfigError(
            f"expected a GPU for each rank, but {problem}. Hint: start at most one rank for each GPU of a host, or set "
            f"{SHARE_VARIABLE}=1 to let ranks share."
        )
    problem = find_shared([f"{name.partition('/')[0]}/{other}" for name, other in told])
    if problem is not None and len({name.partition("/")[0] for name in names}) > 1:
        raise ConfigError(
            f"expected ranks that share GPUs on one host, but {problem} and other ranks are elsewhere. "
            "Hint: a GPU for each rank where there are several hosts."
        )
    return problem is not None


def device_of(world: World, asked: str | None = None) -> torch.device:
    """Return this rank's device: the asked one, else its own GPU where this host has any, else the CPU.

    Ranks in threads of one process compute on the CPU where there are not enough GPUs.

    Raises:
        ConfigError: There are fewer GPUs than ranks, and they are not to share; or one is asked for and there is none;
            or it is neither the CPU nor a GPU of CUDA.
    """
    wanted = None if asked is None else devices.named(asked)
    kind = wanted.type if wanted is not None and devices.is_gpu(wanted) else devices.KINDS[0]
    visible = devices.count(kind)
    if wanted is None and world.launcher == "none" and visible < world.local_world_size:
        return torch.device("cpu")
    if wanted is not None and wanted.type == "cpu":
        return torch.device("cpu")
    if wanted is not None and wanted.index is not None and visible:
        if wanted.index < visible:
            return wanted
        raise ConfigError(
            f"expected device='{kind}:0' to '{kind}:{visible - 1}', got {str(asked)!r}. "
            f"Hint: device='{kind}' gives each local rank its own."
        )
    index = own_index(world.local_rank, world.local_world_size, visible, share=world.shares_devices)
    if index is not None:
        found = devices.device_at(index, kind)
        devices.check_build(found)
        return found
    if wanted is None:
        return torch.device("cpu")
    raise ConfigError(
        f"expected a GPU for device={str(asked)!r}, got none that torch {torch.__version__} can use. "
        "Hint: device='cpu', or look at nvidia-smi, CUDA_VISIBLE_DEVICES and the build of torch."
    )
