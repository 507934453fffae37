"""``unisono launch slurm``: write a batch script, submit it, follow the job."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from unisono.cli.launch import ENGINES, options
from unisono.cli.options.fields import field_options, result_options
from unisono.cli.output.outcome import verb
from unisono.cli.output.tables import answer
from unisono.errors import ConfigError
from unisono.launchers.engines.slurm import SlurmJob, render
from unisono.options.fields import taken


@click.command(context_settings=options.AFTER_SCRIPT, short_help=ENGINES["slurm"])
@field_options(SlurmJob)
@options.python_option
@options.dry_run_option("the batch script")
@options.follow_options("the job's number")
@result_options
@options.program_arguments
@verb("launch slurm")
def slurm(
    script: str, args: tuple[str, ...], is_module: bool, dry_run: bool, as_json: bool, detach: bool, interval: float,
    **given: Any,
) -> int:  # fmt: skip
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
    from unisono.launchers.engines.following import write_to_stdout
    from unisono.launchers.engines.slurm_client import follow, submit

    options.check_json(as_json, is_printed=dry_run or detach, when="--dry-run or --detach")
    command = options.join_command(given.pop("python"), script, args, is_module=is_module)
    own = {"name": script if is_module else Path(script).stem, **taken(SlurmJob, given)}
    logs = Path(own.pop("logs", "logs")).absolute()
    text = render(SlurmJob(command=command, chdir=str(Path.cwd()), logs=str(logs), **own))
    if dry_run:
        answer({"script": text}, as_json, text.splitlines)
        return 0
    _make(logs)
    job_id = submit(text)
    if detach:
        answer({"job": job_id}, as_json, lambda: [job_id])
        return 0
    following = partial(follow, job_id, tell=options.tell, write=write_to_stdout, interval_s=interval)
    return options.followed(following, job_id, f"scancel {job_id}")


def _make(logs: Path) -> None:
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"expected --logs to name a directory, got '{logs}': {error.strerror}.") from error
