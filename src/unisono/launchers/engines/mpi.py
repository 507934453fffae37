"""The command that starts ranks with Open MPI (pure).

Open MPI only starts the processes and tells them who they are; they talk as under any other launcher, through shared
memory, gloo or NCCL. Source: mpirun(1) of Open MPI 4.1 and 5 (https://docs.open-mpi.org).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from unisono.errors import ConfigError
from unisono.launchers.engines.job import Job
from unisono.options.fields import option
from unisono.options.quantities import PORT, RANKS
from unisono.store.secret import VARIABLE

_HOST = re.compile(r"([A-Za-z0-9][\w.-]*)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class MpiJob(Job):
    """One launch by ``mpirun``; the fields that users set say what they are."""

    command: tuple[str, ...]  #: What each rank runs, as words.
    workers: int = option(text="Ranks on all machines together.", of=RANKS, short="-n", word="N")
    hosts: tuple[str, ...] = option((), "Where, rank 0 on the first.", usual="this machine", word="HOST:SLOTS,...")
    port: int = option(29500, "Where the ranks of several machines meet, on the first.", of=PORT, word="PORT")
    options: tuple[str, ...] = option(
        (), "More words for mpirun, one each time.", key="option", word="WORD", repeats=True
    )
    as_root: bool = False  #: Whether the caller is root, which Open MPI refuses unless told.

    def __post_init__(self) -> None:
        Job.__post_init__(self)
        slots = slots_of(self.hosts)
        if slots and sum(slots.values()) != self.workers:
            raise ConfigError(
                f"expected as many slots as workers, got {sum(slots.values())} slots on {len(slots)} hosts for "
                f"{self.workers} workers. Hint: --hosts a:2,b:2 for 4 workers."
            )


def slots_of(hosts: Sequence[str]) -> dict[str, int]:
    """Return the slots of each host from ``name:slots``; without a number, 1."""
    slots: dict[str, int] = {}
    for host in hosts:
        match = _HOST.fullmatch(host)
        if not match or match.group(1) in slots or match.group(2) == "0":
            raise ConfigError(f"expected hosts as name:slots, each once, got {','.join(hosts)!r}.")
        slots[match.group(1)] = int(match.group(2) or 1)
    return slots


def render(job: MpiJob) -> list[str]:
    """Return the words of the command."""
    slots = slots_of(job.hosts)
    env = dict(job.env)
    if len(slots) > 1:
        # Open MPI tells its processes nothing of where another one runs.
        env = {"MASTER_ADDR": next(iter(slots)), "MASTER_PORT": str(job.port), **env}
    words = ["mpirun", "-n", str(job.workers), "-x", VARIABLE]  # by name alone: the value stands in no command line
    if slots:
        words += ["--host", ",".join(f"{name}:{count}" for name, count in slots.items())]
    else:
        words += ["--oversubscribe"]  # Open MPI counts cores; how many ranks are of use is the caller's to say
    # Bound to one core, a rank with several threads would have them all on it.
    words += ["--bind-to", "none", *(["--allow-run-as-root"] if job.as_root else [])]
    words += [word for name, value in env.items() for word in ("-x", f"{name}={value}")]
    return [*words, *job.options, *job.command]
