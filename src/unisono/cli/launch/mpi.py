"""``unisono launch mpi``: start ranks with Open MPI's mpirun."""

import os
import shlex
import sys
from typing import Any

import click

from unisono.cli.launch import ENGINES
from unisono.cli.launch.options import (
    AFTER_SCRIPT,
    dry_run_option,
    env_option,
    port_option,
    program_arguments,
    python_option,
    ranks_option,
    threads_option,
)
from unisono.cli.outcome import perform


@click.command(context_settings=AFTER_SCRIPT, short_help=ENGINES["mpi"])
@ranks_option
@click.option(
    "--hosts", default="", metavar="HOST:SLOTS,...", help="Where, rank 0 on the first.  [default: this machine]"
)
@port_option
@threads_option()
@env_option
@click.option("--option", "options", multiple=True, metavar="WORD", help="More words for mpirun, one each time.")
@python_option
@dry_run_option("the command")
@program_arguments
def mpi(script: str, args: tuple[str, ...], is_module: bool, dry_run: bool, **given: Any) -> None:
    """Start SCRIPT with Open MPI: mpirun finds the hosts and starts the ranks, which then talk among themselves.

    Scripts written for torchrun run unchanged. This process becomes mpirun: signals and exit code are its own.

    Exit code: 0 if all ranks ended well, or --dry-run; else mpirun's; 1 if there is no mpirun; 2 for wrong usage.
    """
    sys.exit(perform("launch mpi", lambda: _mpi(script, args, is_module, dry_run, given)))


def _mpi(script: str, args: tuple[str, ...], is_module: bool, dry_run: bool, given: dict[str, Any]) -> None:
    from unisono.cli.options.settings import pairs
    from unisono.launchers.engines.following import find_tool
    from unisono.launchers.engines.mpi import MpiJob, render
    from unisono.launchers.spec import ModuleTarget, ScriptTarget, check_target
    from unisono.store.secret import FILE_VARIABLE, VARIABLE, given_secret, new_secret

    check_target(ModuleTarget(name=script) if is_module else ScriptTarget(path=script))
    start = (given["python"], "-P", "-m", "unisono", "join", "--threads", str(given["threads"]))
    command = render(
        MpiJob(
            command=(*start, *(["-m"] if is_module else []), script, *args),
            workers=given["workers"],
            hosts=tuple(host for host in given["hosts"].split(",") if host),
            port=given["port"],
            env=pairs("--env", given["variables"]),
            options=given["options"],
            as_root=os.geteuid() == 0,
        )
    )
    if dry_run:
        click.echo(shlex.join(command))
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
