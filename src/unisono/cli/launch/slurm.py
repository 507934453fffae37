"""``unisono launch slurm``: write a batch script, submit it, follow the job."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.launch import ENGINES
from unisono.cli.launch.options import (
    AFTER_SCRIPT,
    dry_run_option,
    env_option,
    follow_options,
    name_option,
    program_arguments,
    python_option,
    size_options,
    threads_option,
)
from unisono.cli.options.settings import PATH, number
from unisono.cli.outcome import INTERRUPTED, perform
from unisono.options.quantities import RESTARTS, WARNING

if TYPE_CHECKING:
    from unisono.launchers.engines.slurm import SlurmJob

_OWN_OPTIONS = ("time", "partition", "account", "qos", "mem")


@click.command(context_settings=AFTER_SCRIPT, short_help=ENGINES["slurm"])
@size_options("machine")
@threads_option("Threads and CPUs per rank.")
@click.option("--time", metavar="LIMIT", help="Time limit, such as 1-00:00:00; the run saves before it and goes on.")
@click.option("--partition", metavar="NAME", help="Slurm's partition.")
@click.option("--account", metavar="NAME", help="Slurm's account.")
@click.option("--qos", metavar="NAME", help="Slurm's quality of service.")
@click.option("--mem", metavar="SIZE", help="Memory on each machine, such as 64G.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other option of sbatch (constraint=h100); may be given several times.",
)
@click.option("--array", metavar="INDICES", help="A job array, such as 0-3%2; {task} in ARGS becomes the index.")
@click.option("--setup", multiple=True, metavar="LINE", help="Line of shell before the ranks start (module load ...).")
@env_option
@python_option
@name_option("Name of the job.")
@click.option("--logs", type=PATH, default="logs", show_default=True, metavar="DIR", help="Where output goes; shared.")
@click.option(
    "--warn",
    "warn_s",
    type=number(WARNING),
    default=60,
    show_default=True,
    metavar="S",
    help="Seconds before the time limit at which the run stops and saves.",
)
@click.option(
    "--max-requeues",
    type=number(RESTARTS),
    default=100,
    show_default=True,
    metavar="K",
    help="So often a stopped and saved job goes back into the queue.",
)
@dry_run_option("the batch script")
@follow_options("the job's number")
@program_arguments
def slurm(
    script: str,
    args: tuple[str, ...],
    is_module: bool,
    dry_run: bool,
    detach: bool,
    interval_s: float,
    **given: Any,
) -> None:
    """Submit SCRIPT as a Slurm job, and follow it.

    Each task of the job is a rank. A script that trains through unisono.Run with out=... stops after the step in
    progress and saves when its time is nearly up or when it is pre-empted; the job then goes back into the queue, and
    goes on where it stopped, with the same bits. Working directory, script, --logs and the run directory must be on a
    file system that the nodes share.

    Ctrl-C ends the following; the job goes on.

    Exit code: 0 when the job (all tasks of an array) ended well, or --detach or --dry-run; else its own code, 124 for
    the time limit, 128 + n for signal n; 75 if it has saved and was not requeued; 1 if Slurm is missing or refuses; 2
    for wrong usage; 130 after Ctrl-C.
    """
    sys.exit(perform("launch slurm", lambda: _slurm(script, args, is_module, dry_run, detach, interval_s, given)))


def _slurm(
    script: str,
    args: tuple[str, ...],
    is_module: bool,
    dry_run: bool,
    detach: bool,
    interval_s: float,
    given: dict[str, Any],
) -> int:
    from unisono.errors import ConfigError
    from unisono.launchers.engines.following import write_to_stdout
    from unisono.launchers.engines.slurm import render
    from unisono.launchers.engines.slurm_client import follow, submit

    job = plan(script, args, is_module, given)
    text = render(job)
    if dry_run:
        click.echo(text, nl=False)
        return 0
    try:
        Path(job.logs).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"expected --logs to name a directory, got {given['logs']!r}: {error.strerror}.") from error
    job_id = submit(text)
    if detach:
        click.echo(job_id)
        return 0
    try:
        return follow(job_id, tell=_tell, write=write_to_stdout, interval_s=interval_s)
    except KeyboardInterrupt:
        _tell(f"job {job_id} goes on. To end it: scancel {job_id}")
        return INTERRUPTED


def _tell(line: str) -> None:
    click.echo(f"unisono: {line}", err=True)


def plan(script: str, args: tuple[str, ...], is_module: bool, given: dict[str, Any]) -> "SlurmJob":
    """Return the job that the options describe, checked.

    Raises:
        ConfigError: There is no such script, or a setting cannot be sent.
    """
    from unisono.cli.options.settings import pairs
    from unisono.launchers.engines.slurm import SlurmJob
    from unisono.launchers.spec import ModuleTarget, ScriptTarget, check_target

    check_target(ModuleTarget(name=script) if is_module else ScriptTarget(path=script))
    own = {name: given[name] for name in _OWN_OPTIONS if given[name] is not None}
    return SlurmJob(
        command=(given["python"], "-P", "-m", "unisono", "join", *(["-m"] if is_module else []), script, *args),
        name=given["name"] or (script if is_module else Path(script).stem),
        logs=str(Path(given["logs"]).absolute()),
        chdir=str(Path.cwd()),
        options={**own, **pairs("--option", given["options"])},
        setup=given["setup"],
        env=pairs("--env", given["variables"]),
        **{
            name: given[name]
            for name in ("nodes", "workers_per_node", "threads", "gpus_per_node", "array", "warn_s", "max_requeues")
        },
    )
