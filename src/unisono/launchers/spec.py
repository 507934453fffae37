"""What to start: the launch as plain values.

In: settings from the command line or from `launch`. Out: a `LaunchSpec`; `environment` makes the variables of a worker
from it. Must not import torch.
"""

import importlib.machinery
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from unisono.environment import CPU_LEVELS
from unisono.errors import ConfigError
from unisono.launchers.program_files import why_not_a_module, why_not_a_script
from unisono.launchers.streams import Streams
from unisono.launchers.supervision.resizing import parse_sizes
from unisono.options.fields import OUTPUT, PROCESSES, check, option
from unisono.options.quantities import FRACTION, REPLICAS, RESTARTS, SECONDS, SPARES, THREADS, WORKERS
from unisono.system.devices import check_devices
from unisono.system.machine import count_gpus, usable_cores

OUTPUT_MODES = ("prefix", "leader", "stderr", "quiet")
BACKENDS = ("shm",)
SAME_COMMAND = "the same command"  #: `LaunchSpec.again` of a program that called `launch`.
"""What may stand in for gloo in the workers."""
BACKEND_VARIABLE = "UNISONO_BACKEND"  # tells a worker the module that puts it there
GRACE_S = 5.0
STOP_GRACE_S = 30.0
HEARTBEAT_S = 10.0
HANG_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptTarget:
    """A Python file, run as ``python path args...`` would run it."""

    path: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleTarget:
    """A module, run as ``python -m name args...`` would run it."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramTarget:
    """A program of any kind, run as ``name args...`` would run it."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionTarget:
    """A module-level function and its pickled arguments; or any function, pickled with them."""

    #: Module that holds the function; ``__main__`` for a function of the starting program; empty where the function
    #: itself is in the payload.
    module: str
    name: str  #: Name of the function in that module.
    main_file: str = ""  #: File of the starting program when the workers need it, else empty.
    main_module: str = ""  #: Its module name when it was started with ``python -m``, else empty.
    sys_path: tuple[str, ...] = ()  #: Import path of the starting program.
    #: Pickle of ``(args, kwargs)``; with the function before them where it is not imported.
    payload: bytes = field(repr=False)
    results: str = ""  #: Directory for what the function returns; empty where nobody wants it.


Target = ScriptTarget | ModuleTarget | ProgramTarget | FunctionTarget


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlacement:
    """Where this host's workers sit in a world of several hosts; made anew for every attempt."""

    node_rank: int  #: Index of this host.
    num_nodes: int  #: Number of hosts.
    first_rank: int  #: Rank of this host's first worker.
    world_size: int  #: Workers on all hosts.
    master_addr: str  #: Where the first host's launcher serves programs that form ``env://`` groups themselves.
    master_port: int  #: Its port.
    interface: str  #: Network interface for gloo and nccl.
    attempt: int  #: Number of this attempt, from 0.
    run_id: str  #: The same on all hosts.
    store: str  #: ``HOST:PORT`` of the workers' own store, on the first host too.
    secret: str = field(repr=False)  #: Of that store; the same on all hosts.
    #: ``HOST:PORT`` of a store of this host's launcher for those that go on without another host; empty: there is none.
    own_store: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchSpec:
    """One launch on this host; the fields that users set say what they are."""

    target: Target  #: What every worker runs.
    workers: int = option(
        1, "Number of processes (on each host). auto: one per GPU, else one per core; at most the replicas.",
        of=WORKERS, also="auto", short="-n", word="N|auto", group=PROCESSES, basic=True,
    )  # fmt: skip
    threads: int | None = option(
        None, "Threads per process.", of=THREADS, usual="OMP_NUM_THREADS, or 1", word="T", group=PROCESSES, basic=True
    )
    max_restarts: int = option(
        0, "Start the processes again after one has died; K restarts in a row may pass without progress. For programs "
        "that resume, as unisono.Run does.", of=RESTARTS, group=PROCESSES, basic=True,
    )  # fmt: skip
    live: str = option(
        "off", "auto: when a process is killed, the others finish the same step without it, and the run goes on, with "
        "the same bits; where that cannot be, processes are started again. For unisono.Run with the strategy exact, on "
        "the CPU.", "auto", "off", group=PROCESSES,
    )  # fmt: skip
    spares: int = option(
        0, "With --live auto: start so many more processes (on each host), which wait to take the place of one that "
        "has died at once.",
        of=SPARES, word="K", group=PROCESSES,
    )  # fmt: skip
    elastic: str | None = option(
        None, "With --live auto: how few and how many processes there may be, on all hosts. With fewer than MIN left "
        "they start again from the last checkpoint; unisono scale changes their number within these bounds.",
        usual="1 to the replicas", word="MIN:MAX", group=PROCESSES,
    )  # fmt: skip
    witness: float = option(
        0.0, "In this share of the steps one replica is computed a second time, by another process, and their bits are "
        "compared: finds hardware that computes wrong, and code that depends on the rank. 1: in every step. For "
        "unisono.Run with the strategy exact.", of=FRACTION, word="RATE", group=PROCESSES,
    )  # fmt: skip
    #: By the names of ``CUDA_VISIBLE_DEVICES``; empty hides all; None leaves things as they are.
    devices: tuple[str, ...] | None = option(
        None, "GPUs to use: indices among the visible ones, or names, such as 0,2; cpu: none.", key="gpus",
        usual="the visible ones", word="LIST|cpu", group=PROCESSES, basic=True,
    )  # fmt: skip
    share_devices: bool = option(False, "Let several processes compute on one GPU.", group=PROCESSES)
    cpu_level: str | None = option(
        None, "Let ATen, oneDNN and MKL use no newer instructions of the CPU than this: the same ones on unlike hosts.",
        *CPU_LEVELS, usual="what the CPU has", group=PROCESSES,
    )  # fmt: skip
    heartbeat_s: float = option(
        HEARTBEAT_S, "Seconds of silence after which a process counts as stuck; 0: for ever.", of=SECONDS,
        key="heartbeat", word="S", group=PROCESSES,
    )  # fmt: skip
    hang_s: float = option(
        HANG_S, "Seconds without progress after which it is said where each process is; 0: never.", of=SECONDS,
        key="hang_report", word="S", group=PROCESSES,
    )  # fmt: skip
    #: The same for a run that can stop between two steps and save: a step and a checkpoint must fit.
    stop_grace_s: float = option(
        STOP_GRACE_S, "Seconds that a run has to finish its step and save when it is asked to stop.", of=SECONDS,
        key="stop_grace", word="S", group=PROCESSES,
    )  # fmt: skip
    #: As its help says. One worker always writes directly under ``prefix`` and ``leader``.
    output: str = option(
        "prefix", "prefix: each line carries its rank. leader: rank 0 writes directly, so that a progress bar works; "
        "the others' lines go to the error output. stderr: as leader, and nothing goes to the standard output. "
        "quiet: only a failure is shown. auto: leader on a terminal, else prefix.",
        *OUTPUT_MODES, also="auto", group=OUTPUT, basic=True,
    )  # fmt: skip
    backend: str | None = option(
        None, "shm: a script that asks torch.distributed for gloo (or for nothing, without a GPU) gets shared memory: "
        "faster, and the same sums for any buckets.", *BACKENDS, usual="what the script asks for", group=PROCESSES,
    )  # fmt: skip
    transport: str = option(
        "auto", "Between processes of a unisono.Run on the CPU. auto: shared memory within a host, gloo's sockets "
        "between hosts. gloo: its sockets also within a host.", "auto", "gloo", group=PROCESSES,
    )  # fmt: skip
    env: Mapping[str, str] = field(default_factory=dict)  #: Variables on top of the launcher's own environment.
    grace_s: float = GRACE_S  #: Seconds between the request to stop and SIGKILL.
    #: Its ``install()`` is called in each worker before the program, and must not import torch.
    backend_module: str = ""
    #: Where the workers are among those of other hosts; None: there are no others.
    placement: NodePlacement | None = None
    #: A directory that nobody needs once the launcher is gone; removed even where SIGKILL ends the launcher.
    scratch: str | None = None
    again: str = ""  #: The command that goes on with a run, told after Ctrl-C; empty: nothing is told.
    attempt: int = 0  #: Number of this attempt on one host, from 0.
    #: Nobody has asked for `live`: why this run cannot have it is said only when a worker has died.
    is_live_usual: bool = False
    run_id: str = ""  #: Name of the launch for programs that ask torchrun's variables; empty: a new one.
    role: str = "default"  #: Name of the workers' role, for the same.
    streams: Streams = field(default_factory=Streams)  #: Which output is shown and kept; see `Streams`.

    @property
    def ranks(self) -> range:
        """The ranks of this host's workers."""
        first = self.placement.first_rank if self.placement else 0
        return range(first, first + self.workers)

    @property
    def may_be_live(self) -> bool:
        """Whether workers may go on without one that has died."""
        return self.live == "auto" and self.world_size > 1 and not self.why_not_live

    @property
    def why_not_live(self) -> str:
        """Why workers cannot go on without one that has died; empty where nothing is against it."""
        return "it is for programs in Python" if isinstance(self.target, ProgramTarget) else ""

    @property
    def _why_alone(self) -> str:
        return self.why_not_live or ("there is one worker" if self.live == "auto" else f"live is {self.live!r}")

    @property
    def world_size(self) -> int:
        """Number of workers on all hosts."""
        return self.placement.world_size if self.placement else self.workers

    def __post_init__(self) -> None:
        check(self)
        SECONDS.take("grace_s", self.grace_s)
        try:
            parse_sizes(self.elastic)
        except ValueError:
            raise ConfigError(f"expected elastic MIN:MAX with 1 <= MIN <= MAX, got {self.elastic!r}.") from None
        if self.live != "auto" or self.why_not_live:
            self.check_spares()
        if self.live != "auto" or self.why_not_live or self.placement is not None:
            self.check_elastic()
        if self.backend is not None and isinstance(self.target, ProgramTarget):
            raise ConfigError(
                f"backend {self.backend} is put into Python programs, got {self.target.name!r} with --no-python. "
                "Hint: start the script itself, or leave --backend out."
            )
        check_devices(self.workers, self.devices or (), share=self.share_devices)

    def check_spares(self) -> None:
        """Refuse (`ConfigError`) workers that wait where none goes on when one dies; one may have others elsewhere."""
        if self.spares and not self.may_be_live:
            raise ConfigError(
                f"spares={self.spares} are for workers that go on when one dies, and here none does: "
                f"{self._why_alone}. Hint: --live auto with two workers or more on one host, or leave --spares out."
            )

    def check_elastic(self) -> None:
        """Refuse (`ConfigError`) bounds that cannot be held; with no placement there is one host."""
        if self.elastic is None:
            return
        least, most = parse_sizes(self.elastic)
        if not self.may_be_live:
            raise ConfigError(
                f"elastic={self.elastic} is for workers that come and go, and here none does: {self._why_alone}. "
                "Hint: --live auto with two workers or more, or leave --elastic out."
            )
        if not least <= self.world_size <= most:
            raise ConfigError(f"expected {least} to {most} workers (elastic={self.elastic}), got {self.world_size}.")


def check_witness(rate: float, workers: int) -> None:
    """Refuse (`ConfigError`) a witness where one worker computes everything."""
    if rate and workers == 1:
        raise ConfigError(
            f"witness {rate:g}: a replica is computed again by another worker, and there is 1 worker. "
            "Hint: -n 2 notices that one is wrong, -n 3 or more tells which; or leave --witness out."
        )


def check_target(target: Target) -> None:
    """Refuse a target that no worker could run, before any process starts."""
    if isinstance(target, ScriptTarget):
        if why := why_not_a_script(target.path):
            raise ConfigError(f"expected a Python file at {target.path!r}, {why}")
        if not os.access(target.path, os.R_OK):
            raise ConfigError(f"expected a readable file, got no permission to read {target.path!r}.")
    elif isinstance(target, ModuleTarget):
        top = target.name.partition(".")[0]
        finder, places = importlib.machinery.PathFinder, [str(Path.cwd()), *sys.path]
        is_there = top in sys.builtin_module_names or finder.find_spec(top, places) is not None
        if not is_there or Path(target.name).is_file():
            problem = "" if is_there else f": no module named {top!r}"
            raise ConfigError(
                f"expected the name of a module after -m, got {target.name!r}{problem}. "
                f"Hint: {why_not_a_module(target.name)}"
            )
    elif isinstance(target, ProgramTarget) and shutil.which(target.name) is None:
        raise ConfigError(
            f"expected a program after --no-python, got {target.name!r}: not found, or it may not be executed. "
            "Hint: chmod +x, and ./NAME for a file of the working directory; Python scripts need no --no-python."
        )


def find_program(name: str, args: tuple[str, ...] = (), *, is_module: bool) -> ScriptTarget | ModuleTarget:
    """Return the target of a script's path or a module's name, which is there; see `check_target`."""
    target = ModuleTarget(name=name, args=args) if is_module else ScriptTarget(path=name, args=args)
    check_target(target)
    return target


def resolve_workers(workers: int | str, replicas: int | None = None, devices: tuple[str, ...] | None = None) -> int:
    """Return the number of workers to start.

    Args:
        workers: A number, or ``auto``: the number of GPUs if there are any, else of usable cores; never more
            than `replicas`.
        replicas: Replicas of the run, when known.
        devices: The GPUs that were chosen; None where all that are visible may be used.

    Raises:
        ConfigError: Not a number, below 1, or more workers than replicas.
    """
    REPLICAS.maybe("replicas", replicas)
    if workers == "auto":
        found = (count_gpus(os.environ) if devices is None else len(devices)) or usable_cores()
        return found if replicas is None else min(found, replicas)
    name = "workers (-n) as 'auto' or"
    count = WORKERS.read(name, workers) if isinstance(workers, str) else WORKERS.take(name, workers)
    if replicas is not None and count > replicas:
        raise ConfigError(
            f"expected workers <= replicas, got {count} workers for {replicas} replicas: "
            f"a rank without a replica has no work. "
            f"Hint: -n {replicas} (workers={replicas}), or more replicas (which changes the run's result)."
        )
    return count
