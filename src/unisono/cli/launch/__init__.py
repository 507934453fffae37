"""``unisono launch``: hand a script to an engine that starts processes on many machines; one file an engine."""

import click

from unisono.cli.options.lazy import LazyGroup

ENGINES = {
    "slurm": "Write a batch script, submit it, follow the job.",
    "mpi": "Start ranks with Open MPI's mpirun.",
    "ray": "Start ranks in a placement group of Ray.",
    "kubernetes": "Write manifests, hand them to kubectl, follow the job.",
}


def _meant(word: str) -> str:
    """Return a hint for a word that is no engine."""
    from unisono.system.hints import nearest

    if word.endswith(".py"):
        return f" Hint: unisono launch {' | '.join(ENGINES)} {word}; on this machine: unisono run {word}."
    return nearest(word, ENGINES)


@click.group(
    cls=LazyGroup, entries=ENGINES, module="unisono.cli.launch.{}", noun="engine", meant=_meant,
    short_help="Hand a script to Slurm, Open MPI, Ray or Kubernetes.", subcommand_metavar="ENGINE [ARGS]...",
)  # fmt: skip
def launch() -> None:
    """Hand a script to an engine that starts processes on many machines.

    The same script, the same score, the same bits as on one machine. --dry-run shows what would be sent, without the
    engine.

    Exit code: 0 if the script ended well, or was submitted and is not followed; see each engine's help for the others.
    """
