"""``unisono launch mpi``: start ranks with Open MPI's mpirun."""

import os
import shlex
import shutil
import sys
from typing import Any

import click

from unisono.cli.outcome import perform


@click.command(context_settings={"allow_interspersed_args": False}, short_help="Start ranks with Open MPI's mpirun.")
@click.option("-n", "--workers", type=click.IntRange(min=1), required=True, metavar="N", help="Ranks over all hosts.")
@click.option(
    "--hosts", default="", metavar="HOST:SLOTS,...", help="Where, rank 0 on the first.  [default: this machine]"
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=29500,
    show_default=True,
    metavar="PORT",
    help="Where the ranks of several hosts meet, on the first.",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, metavar="T", help="Per rank.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Variable for all ranks.")
@click.option("--option", "options", multiple=True, metavar="WORD", help="More words for mpirun, one each time.")
@click.option("--python", default=sys.executable, metavar="PATH", help="Interpreter on all hosts.  [default: this one]")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.option("--dry-run", is_flag=True, help="Print the command, and start nothing.")
@click.argument("script", metavar="SCRIPT")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def mpi(script: str, args: tuple[str, ...], is_module: bool, dry_run: bool, **given: Any) -> None:
    """Start SCRIPT with Open MPI: mpirun finds the hosts and starts the ranks, which then talk among themselves.

    Scripts written for torchrun run unchanged. This process becomes mpirun: signals and exit code are its own.

    Exit code: 0 if all ranks ended well, or --dry-run; else mpirun's; 1 if there is no mpirun; 2 for wrong usage.
    """
    sys.exit(perform("launch mpi", lambda: _mpi(script, args, is_module, dry_run, given)))


def _mpi(script: str, args: tuple[str, ...], is_module: bool, dry_run: bool, given: dict[str, Any]) -> None:
    from unisono.cli.settings import pairs
    from unisono.errors import LaunchError
    from unisono.launchers.mpi import MpiJob, render
    from unisono.launchers.spec import ModuleTarget, ScriptTarget, check_target

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
    tool = shutil.which(command[0])
    if tool is None:
        raise LaunchError(
            "expected Open MPI's mpirun on PATH, got none. Hint: load its module (module load openmpi), or install "
            "openmpi-bin; ranks of this machine alone need no MPI: unisono run -n N SCRIPT."
        )
    sys.stdout.flush()
    os.execv(tool, command)
