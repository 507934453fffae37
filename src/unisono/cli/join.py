"""``unisono join``: run a script as one rank of a world that srun, mpirun or torchrun has started."""

import os
import sys

import click

from unisono.cli.launch.options import AFTER_SCRIPT, program_arguments
from unisono.cli.options.fields import field_options
from unisono.cli.output.outcome import verb
from unisono.launchers.spec import LaunchSpec, find_program


@click.command(context_settings=AFTER_SCRIPT, short_help="Be one rank of a world that srun or mpirun has started.")
@field_options(LaunchSpec, "threads")
@program_arguments
@verb("join")
def join(threads: int | None, is_module: bool, script: str, args: tuple[str, ...]) -> None:
    """Run SCRIPT as one rank of the world that srun or mpirun has started: mpirun -n 4 unisono join SCRIPT.

    SCRIPT finds torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), so that scripts written
    for torchrun run unchanged, and a fixed number of threads. Programs that use unisono need none of this:
    mpirun -n 4 python SCRIPT will do.

    Exit code: 0 if SCRIPT ended well, else its own; 75 if the run was asked to stop and has saved; 1 if no launcher has
    started it; 2 for wrong usage or settings.
    """
    from unisono.launchers.engines.joining import joined_environment
    from unisono.world import World

    find_program(script, is_module=is_module)
    environ = joined_environment(World.current(), os.environ, threads)
    kind = "module" if is_module else "script"
    command = [sys.executable, "-P", "-m", "unisono.launchers.engines.joined", kind, script, *args]
    sys.stdout.flush()
    # In place of this process, so that the launcher's signals reach the program; and as a new program, so that the
    # C library reads its tunables.
    os.execve(sys.executable, command, environ)
