"""Who am I: the frozen answer, built once from a launcher's environment variables.

In: a mapping (normally ``os.environ``, read here and nowhere below). Out: a `World`. Understands the variables of
unisono's own launcher, torchrun, Slurm's ``srun``, and ``mpirun`` of Open MPI and of MPICH and its kin; the empty
environment is a world of one process. Imports no torch.
"""

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

from unisono.environment import integer
from unisono.errors import WorldError

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """The place of this process among all processes of the run.

    Attributes:
        rank: Index of this process, ``0 <= rank < world_size``.
        world_size: Number of processes.
        local_rank: Index of this process on its host.
        local_world_size: Number of processes on this host.
        node_rank: Index of this host.
        num_nodes: Number of hosts, where the launcher says it; else 1.
        launcher: Whose variables were read: ``none``, ``unisono``, ``torchrun``, ``slurm``, ``openmpi`` or ``mpich``.
        rendezvous: Where the ranks meet: empty for a world of one, ``file://PATH``, ``tcp://HOST:PORT`` where rank 0
            keeps the store, ``unisono://HOST:PORT`` where our launcher does, or ``env://`` for torchrun's.
        run_dir: Run directory imposed by the launcher (``verify`` does so), else None.
        replicas: Replicas imposed by the launcher when the program leaves them unset, else None.
        heartbeat: File in which our launcher wants to read what this process does, else None.
        live: Descriptor of a socket to our launcher where ranks may go on without one that has died, else None.
        live_store: ``HOST:PORT`` of a store of our launcher's, for the ranks that go on without one on another host.
        joins: Number of this process among those of its launch where it was started to join a run under way, else None.
        last_step: Step after which the launcher wants a run to stop (``replay`` does so), else None.
        examine: What ``replay`` and ``blame`` want to know of steps, as JSON, else None.
        shares_devices: Whether several ranks of this host may compute on one GPU.
        witness: Share of the steps in which a replica is to be computed by two ranks, where the program leaves it open.
        transport: ``gloo``: ranks on the CPU are to go through it where the program leaves it open; else ``auto``.
        threads: Threads per process asked for by ``OMP_NUM_THREADS``, else None.
        secret: What only the processes of this run know, if the environment gives one; never shown.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    launcher: str = "none"
    rendezvous: str = ""
    run_dir: str | None = None
    replicas: int | None = None
    threads: int | None = None
    heartbeat: str | None = None
    live: int | None = None
    live_store: str = ""
    joins: int | None = None
    last_step: int | None = None
    witness: float = 0.0
    transport: str = "auto"
    examine: str | None = None
    shares_devices: bool = False
    secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for index, size in (("rank", "world_size"), ("local_rank", "local_world_size")):
            i, n = getattr(self, index), getattr(self, size)
            if n < 1 or not 0 <= i < n:
                raise WorldError(
                    f"expected 0 <= {index} < {size}, got {index}={i}, {size}={n} "
                    f"from the variables of {self.launcher!r}. Hint: start all processes with one launcher."
                )
        if self.local_world_size > self.world_size:
            raise WorldError(
                f"expected local_world_size <= world_size, got {self.local_world_size} > {self.world_size} "
                f"from the variables of {self.launcher!r}."
            )

    if not TYPE_CHECKING:  # a type checker would take any name for one that there is

        def __getattr__(self, name: str) -> NoReturn:
            """Say what there is in place of `name`."""
            from unisono.system.hints import instead_of_world

            raise AttributeError(f"a World has no {name!r}.{instead_of_world(name, dir(type(self)))}", obj=None)

    @property
    def size(self) -> int:
        """The same as `world_size`."""
        return self.world_size

    @property
    def is_leader(self) -> bool:
        """Whether this process writes the run's files and speaks for all."""
        return self.rank == 0

    @property
    def is_single_host(self) -> bool:
        """Whether all processes run on this host."""
        return self.local_world_size == self.world_size

    @classmethod
    def current(cls) -> "World":
        """Return the world of this process, from its own environment."""
        return cls.from_env(os.environ)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "World":
        """Return the world that a launcher's variables describe; the innermost wins: torchrun's inside ``srun``.

        Args:
            environ: Environment variables; never written to.

        Raises:
            WorldError: The variables are incomplete, not numbers, or contradict each other.

        Example:
            >>> World.from_env({}).world_size
            1
        """
        if "RANK" in environ or "WORLD_SIZE" in environ:
            world = _torchrun(environ)
        elif "OMPI_COMM_WORLD_RANK" in environ:
            world = _openmpi(environ)
        # Before Slurm: inside its jobs, MPICH starts its own helpers with srun, which does not set the second one.
        elif "PMI_RANK" in environ and "MPI_LOCALRANKID" in environ:
            world = _mpich(environ)
        # The batch script of a Slurm job carries SLURM_PROCID=0 too, but only srun's tasks have a step id.
        elif "SLURM_PROCID" in environ and "SLURM_STEP_ID" in environ:
            world = _slurm(environ)
        else:
            world = cls()
        replicas = integer(environ, "UNISONO_REPLICAS", 0)
        threads = environ.get("OMP_NUM_THREADS", "")  # OpenMP also takes lists, and ignores what it cannot read
        is_ours = world.launcher == "unisono"
        return replace(
            world,
            # Only its own launcher's: torchrun may run below `unisono run`, in a process that inherits the variable.
            heartbeat=environ.get("UNISONO_HEARTBEAT") if is_ours else None,
            live=integer(environ, "UNISONO_LIVE", -1) if "UNISONO_LIVE" in environ and is_ours else None,
            live_store=environ.get("UNISONO_LIVE_STORE", "") if is_ours else "",
            joins=integer(environ, "UNISONO_JOINS", -1) if "UNISONO_JOINS" in environ and is_ours else None,
            run_dir=environ.get("UNISONO_RUN_DIR"),
            replicas=replicas or None,
            last_step=integer(environ, "UNISONO_LAST_STEP", 0) or None,
            witness=_share(environ, "UNISONO_WITNESS"),
            transport="gloo" if environ.get("UNISONO_TRANSPORT") == "gloo" else "auto",
            examine=environ.get("UNISONO_EXAMINE"),
            shares_devices=bool(integer(environ, "UNISONO_SHARE_DEVICES", 0)),
            threads=int(threads) if threads.isdecimal() and int(threads) else None,
            secret=_secret(environ),
        )


def expand_first_host(nodelist: str) -> str:
    """Return the first host of a Slurm node list such as ``gpu[003-007,12],login1``."""
    match = re.match(r"[^,\[\]](?:[^,\[\]]|\[\d[^\[\]]*\])*", nodelist)
    if not match:
        raise WorldError(f"expected a Slurm node list such as 'gpu[1-4]', got {nodelist!r}.")
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", match.group())


def expand_tasks_per_node(text: str) -> list[int]:
    """Return Slurm's tasks per node, ``2(x3),1`` as ``[2, 2, 2, 1]``."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if not match:
            raise WorldError(f"expected SLURM_TASKS_PER_NODE such as '2(x3),1', got {text!r}.")
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts


def _share(environ: Mapping[str, str], name: str) -> float:
    text = environ.get(name, "0")
    if not re.fullmatch(r"0|1|[01]?\.\d+(e-\d+)?|\d(\.\d+)?e-\d+", text) or float(text) > 1:
        raise WorldError(f"expected {name} to be a number from 0 to 1, got {text!r}.")
    return float(text)


def _torchrun(environ: Mapping[str, str]) -> World:
    world_size = integer(environ, "WORLD_SIZE")
    rank = integer(environ, "RANK")
    place = environ.get("UNISONO_RENDEZVOUS")
    if place:
        launcher = "torchrun" if place.startswith("tcp://") else "unisono"  # the first by `unisono join`
        rendezvous = place if "://" in place else f"file://{place}"
    elif world_size == 1 and "MASTER_ADDR" not in environ:
        launcher, rendezvous = "torchrun", ""
    else:
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if name not in environ:
                raise WorldError(
                    f"WORLD_SIZE={world_size} but {name} is not set: the ranks cannot meet. "
                    "Hint: start the program with `unisono run` or torchrun, which set it."
                )
        integer(environ, "MASTER_PORT")
        launcher, rendezvous = "torchrun", "env://"
    return World(
        rank=rank,
        world_size=world_size,
        local_rank=integer(environ, "LOCAL_RANK", rank),
        local_world_size=integer(environ, "LOCAL_WORLD_SIZE", world_size),
        node_rank=integer(environ, "GROUP_RANK", 0),
        num_nodes=integer(environ, "GROUP_WORLD_SIZE", 1),
        launcher=launcher,
        rendezvous=rendezvous,
    )


def _secret(environ: Mapping[str, str]) -> str:
    if not any(name.startswith("UNISONO_SECRET") for name in environ):
        return ""
    from unisono.store.secret import given_secret  # slow to load, and of no use to a process alone

    return given_secret(environ) or ""


def _slurm(environ: Mapping[str, str]) -> World:
    world_size = integer(environ, "SLURM_STEP_NUM_TASKS", integer(environ, "SLURM_NTASKS", 1))
    node_rank = integer(environ, "SLURM_NODEID", 0)
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or str(world_size)
    per_node = expand_tasks_per_node(tasks)
    if node_rank >= len(per_node):
        raise WorldError(f"SLURM_NODEID={node_rank} but SLURM_TASKS_PER_NODE={tasks!r} lists {len(per_node)} nodes.")
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or _LOOPBACK
    host = _LOOPBACK if len(per_node) == 1 else expand_first_host(hosts)
    key = f"{environ.get('SLURM_JOB_ID', '0')}.{environ['SLURM_STEP_ID']}"
    return World(
        rank=integer(environ, "SLURM_PROCID"),
        world_size=world_size,
        local_rank=integer(environ, "SLURM_LOCALID", 0),
        local_world_size=per_node[node_rank],
        node_rank=node_rank,
        launcher="slurm",
        rendezvous=_tcp(environ, world_size, host, key),
    )


def _openmpi(environ: Mapping[str, str]) -> World:
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    key = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or "0"
    return _mpi(environ, names, "openmpi", key, "mpirun -x MASTER_ADDR=<first host> -x MASTER_PORT=<free port> ...")


def _mpich(environ: Mapping[str, str]) -> World:
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    # Hydra gives a job no name; all its processes talk to one port of it, or have the same parent.
    key = environ.get("PMI_PORT") or environ.get("PMI_ID_JOB") or str(os.getppid())
    hint = "mpiexec -genv MASTER_ADDR <first host> -genv MASTER_PORT <free port> ..."
    return _mpi(environ, names, "mpich", key, hint)


def _mpi(environ: Mapping[str, str], names: tuple[str, str, str, str], launcher: str, key: str, hint: str) -> World:
    rank, world_size = (integer(environ, name) for name in names[:2])
    local_world_size = integer(environ, names[3], world_size)
    if local_world_size < world_size and "MASTER_ADDR" not in environ:
        raise WorldError(
            f"{launcher} started {world_size} ranks on several hosts but MASTER_ADDR is not set: they cannot meet. "
            f"Hint: {hint}"
        )
    return World(
        rank=rank,
        world_size=world_size,
        local_rank=integer(environ, names[2], 0),
        local_world_size=local_world_size,
        node_rank=rank // local_world_size,  # MPI numbers no hosts: this one's index where they are equal
        launcher=launcher,
        rendezvous=_tcp(environ, world_size, _LOOPBACK, key),
    )


def _tcp(environ: Mapping[str, str], world_size: int, host: str, key: str) -> str:
    if world_size == 1:
        return ""
    # Below 32768, where Linux starts to hand out ephemeral ports.
    port = integer(environ, "MASTER_PORT", 20000 + zlib.crc32(key.encode()) % 12000)
    return f"tcp://{environ.get('MASTER_ADDR', host)}:{port}"
