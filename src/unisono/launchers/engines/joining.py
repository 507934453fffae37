"""One rank of a world that srun, mpirun or torchrun has started: the variables its program finds (pure).

In: the `World` that the launcher's variables describe. Out: torchrun's variables, so that a program written for
``env://`` and ``LOCAL_RANK`` runs unchanged under launchers that never heard of them. Must not import torch.
"""

from collections.abc import Mapping
from urllib.parse import urlparse

from unisono.errors import WorldError
from unisono.launchers.worker.environment import COPY_AROUND_CACHES, thread_variables
from unisono.store.secret import FILE_VARIABLE, VARIABLE
from unisono.world import World

PARENT_VARIABLE = "UNISONO_PARENT"
"""Names the process with which the rank's program is to die."""

_LOOPBACK = "127.0.0.1"


def joined_environment(world: World, environ: Mapping[str, str], threads: int | None = None) -> dict[str, str]:
    """Return all variables of a rank's program.

    Args:
        world: From `World.from_env` of the same variables.
        environ: The process's own variables; never written to.
        threads: Threads of the rank. None: the user's ``OMP_NUM_THREADS``, or 1.

    Raises:
        WorldError: No launcher has started this process.
    """
    if world.launcher == "none":
        raise WorldError(
            "expected to be started by srun, mpirun or torchrun, got the variables of none of them. "
            "Hint: mpirun -n 4 unisono join SCRIPT; or start processes with unisono run -n 4 SCRIPT."
        )
    own = {
        "GLIBC_TUNABLES": COPY_AROUND_CACHES,
        **environ,
        **thread_variables(threads, environ),
        "PYTHONUNBUFFERED": "1",
    }
    if world.rendezvous.startswith(("file://", "env://", "unisono://")):  # unisono run, torchrun: theirs are there
        return own
    # A world of one meets nobody: any free port will do.
    where = urlparse(world.rendezvous or f"tcp://{_LOOPBACK}:0")
    if world.secret:
        own.pop(FILE_VARIABLE, None)
        own[VARIABLE] = world.secret
    if world.rendezvous:  # for programs that use unisono: the others meet at torch's store
        own["UNISONO_RENDEZVOUS"] = world.rendezvous
    return own | {
        "RANK": str(world.rank),
        "LOCAL_RANK": str(world.local_rank),
        "ROLE_RANK": str(world.rank),
        "GROUP_RANK": str(world.node_rank),
        "WORLD_SIZE": str(world.world_size),
        "LOCAL_WORLD_SIZE": str(world.local_world_size),
        "ROLE_WORLD_SIZE": str(world.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": where.hostname or _LOOPBACK,
        "MASTER_PORT": str(where.port or 0),
    }
