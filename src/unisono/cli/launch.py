"""``unisono launch``: hand a script to an engine that starts processes on many machines; one file an engine."""

import importlib
from typing import final

import click

ENGINES = {
    "slurm": "Write a batch script, submit it, follow the job.",
    "mpi": "Start ranks with Open MPI's mpirun.",
    "ray": "Start ranks in a placement group of Ray.",
    "kubernetes": "Write manifests and hand them to kubectl.",
}


@final
class _Engines(click.Group):
    """A group whose commands live in ``unisono.cli.launch_<engine>``, under the same name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the engines."""
        return list(ENGINES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load an engine's command."""
        if cmd_name not in ENGINES:
            return None
        command: click.Command = getattr(importlib.import_module(f"unisono.cli.launch_{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the engines without loading them."""
        with formatter.section("Engines"):
            formatter.write_dl(list(ENGINES.items()))


@click.command(
    cls=_Engines,
    short_help="Hand a script to Slurm, Open MPI, Ray or Kubernetes.",
    subcommand_metavar="ENGINE [ARGS]...",
)
def launch() -> None:
    """Hand a script to an engine that starts processes on many machines.

    The same script, the same score, the same bits as on one machine. --dry-run shows what would be sent, without the
    engine.

    Exit code: 0 if the script ended well, or was submitted and is not followed; see each engine's help for the others.
    """
