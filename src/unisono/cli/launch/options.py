"""Options that the engines of ``unisono launch`` take in the same words, and what a script and its arguments are."""

import sys
from collections.abc import Callable

import click

from unisono.cli.options.fields import single
from unisono.cli.options.settings import Decorator, stack
from unisono.cli.output import outcome
from unisono.cli.output.outcome import INTERRUPTED
from unisono.errors import ConfigError
from unisono.options.quantities import INTERVAL

UNDERSCORES = {"token_normalize_func": lambda token: token.replace("_", "-")}
"""Settings of a command: ``--batch_size`` is ``--batch-size``."""
AFTER_SCRIPT = {"allow_interspersed_args": False, **UNDERSCORES}
"""Settings of a command: everything after SCRIPT belongs to the script."""


program_arguments = stack(
    click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m."),
    click.argument("script", metavar="SCRIPT"),
    click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]..."),
)
"""``-m``, SCRIPT and ARGS, as `is_module`, `script` and `args`."""

python_option = click.option(
    "--python", default=sys.executable, metavar="PATH", help="Interpreter on all machines.  [default: this one]"
)


def dry_run_option(what: str) -> Decorator:
    """Return ``--dry-run``; `what` would be sent."""
    return click.option("--dry-run", is_flag=True, help=f"Print {what}, and send nothing.")


def follow_options(what: str) -> Decorator:
    """Return ``--detach``, which prints `what` of the job instead of following it, and ``--interval``."""
    return stack(
        click.option("--detach", is_flag=True, help=f"Print {what}, and do not follow the job."),
        single("interval", "Between two looks at the job.", of=INTERVAL, default=2.0, word="S"),
    )


def followed(follow: Callable[[], int], job: str, how_to_end: str) -> int:
    """Follow a job to its end, and return its exit code; Ctrl-C ends the following only."""
    try:
        return follow()
    except KeyboardInterrupt:
        tell(f"job {job} goes on. To end it: {how_to_end}")
        return INTERRUPTED


def join_command(
    python: str, script: str, args: tuple[str, ...], *, is_module: bool, threads: int | None = None
) -> tuple[str, ...]:
    """Return the command that runs a script, which is there, as one rank on any machine."""
    from unisono.launchers.spec import find_program

    find_program(script, is_module=is_module)
    more = () if threads is None else ("--threads", str(threads))
    return (python, "-P", "-m", "unisono", "join", *more, *(["-m"] if is_module else []), script, *args)


def check_json(as_json: bool, *, is_printed: bool, when: str = "--dry-run") -> None:
    """Refuse ``--json`` where a job's own output goes to the standard output."""
    if as_json and not is_printed:
        raise ConfigError(f"--json needs {when}: else the standard output is the job's. Hint: leave --json out.")


def tell(line: str) -> None:
    """Say what becomes of a job, on the error output; nothing with ``--quiet``."""
    outcome.tell(f"unisono: {line}")
