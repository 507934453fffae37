"""``unisono launch mpi``: start ranks with Open MPI's mpirun."""

import os
import shlex
import sys
from typing import Any

import click

from unisono.cli.launch import ENGINES
from unisono.cli.launch.options import (
    AFTER_SCRIPT,
    check_json,
    dry_run_option,
    join_command,
    program_arguments,
    python_option,
)
from unisono.cli.options.fields import field_options, result_options
from unisono.cli.output.outcome import verb
from unisono.cli.output.tables import answer
from unisono.launchers.engines.mpi import MpiJob, render
from unisono.options.fields import taken


@click.command(context_settings=AFTER_SCRIPT, short_help=ENGINES["mpi"])
@field_options(MpiJob)
@python_option
@dry_run_option("the command")
@result_options
@program_arguments
@verb("launch mpi")
def mpi(script: str, args: tuple[str, ...], is_module: bool, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Start SCRIPT with Open MPI: mpirun finds the hosts and starts the ranks, which then talk among themselves.

    Scripts written for torchrun run unchanged. This process becomes mpirun: signals and exit code are its own.

    Exit code: 0 if all ranks ended well, or --dry-run; else mpirun's; 1 if there is no mpirun; 2 for wrong usage.
    """
    from unisono.launchers.engines.following import find_tool
    from unisono.store.secret import FILE_VARIABLE, VARIABLE, given_secret, new_secret

    check_json(as_json, is_printed=dry_run)
    start = join_command(given.pop("python"), script, args, is_module=is_module, threads=given["threads"] or 1)
    command = render(MpiJob(command=start, as_root=os.geteuid() == 0, **taken(MpiJob, given)))
    if dry_run:
        answer({"command": command}, as_json, lambda: [shlex.join(command)])
        return
    tool = find_tool(
        command[0],
        "Open MPI's",
        "load its module (module load openmpi), or install openmpi-bin; ranks of this machine alone need no MPI: "
        "unisono run -n N SCRIPT.",
    )
    environ = {name: value for name, value in os.environ.items() if name != FILE_VARIABLE}
    environ[VARIABLE] = given_secret(os.environ) or new_secret()
    sys.stdout.flush()
    os.execve(tool, command, environ)
