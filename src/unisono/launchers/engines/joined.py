"""The program of one rank that srun, mpirun or Ray has started: run it, and leave word when the run has stopped.

In: ``joined KIND TARGET ARGS...`` and the variables of `joined_environment`. Out: the exit code. A launcher that kills
a step as soon as one of its processes ends badly would cut off ranks that are still leaving; where it names a file in
``UNISONO_STOPPED``, a run that was asked to stop and has saved makes that file and ends with code 0. Must not import
torch.
"""

import faulthandler
import os
import signal
import sys
from pathlib import Path

from unisono.errors import ConfigError, DataError, RunStopped
from unisono.launchers.engines.joining import PARENT_VARIABLE
from unisono.launchers.engines.slurm import MARK_VARIABLE
from unisono.launchers.worker.child import run_module, run_script
from unisono.system.leaving import leave_groups_at_exit
from unisono.system.processes import die_with_parent

_USAGE_ERROR = 2


def main(argv: list[str]) -> int:
    """Run one rank's program and return its exit code.

    Args:
        argv: Kind (``script`` or ``module``), target, and the program's own arguments.

    Raises:
        RunStopped: The program was asked to stop, and nobody waits for the mark of that.
    """
    kind, target, *args = argv
    if parent := os.environ.pop(PARENT_VARIABLE, ""):
        die_with_parent(int(parent))
    faulthandler.enable()
    # Slurm warns of the time limit by it, and a script that knows nothing of that would die early; a run takes it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    leave_groups_at_exit()
    local_rank = int(os.environ["LOCAL_RANK"])
    try:
        (run_script if kind == "script" else run_module)(target, args, local_rank)
    except RunStopped as stopped:
        mark = os.environ.get(MARK_VARIABLE)
        if not mark:
            raise
        Path(mark).write_text(f"{stopped.step}\n")
        return 0
    except (ConfigError, DataError) as error:
        sys.stderr.write(f"[rank {os.environ['RANK']}/{os.environ['WORLD_SIZE']}] {type(error).__name__}: {error}\n")
        return _USAGE_ERROR
    return 0


if __name__ == "__main__":
    _self = sys.modules["__main__"]  # the program takes this name; these functions must live on
    sys.exit(main(sys.argv[1:]))
