"""Options that the engines of ``unisono launch`` take in the same words, and what a script and its arguments are."""

import sys
from collections.abc import Callable
from typing import Any

import click

from unisono.cli.options.settings import number
from unisono.options.quantities import DEVICES, INTERVAL, NODES, PORT, RANKS, THREADS, WORKERS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

UNDERSCORES = {"token_normalize_func": lambda token: token.replace("_", "-")}
"""Settings of a command: ``--batch_size`` is ``--batch-size``."""
AFTER_SCRIPT = {"allow_interspersed_args": False, **UNDERSCORES}
"""Settings of a command: everything after SCRIPT belongs to the script."""


def stack(*options: Decorator) -> Decorator:
    """Return one decorator that adds options, the first of them first in ``--help``."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


program_arguments = stack(
    click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m."),
    click.argument("script", metavar="SCRIPT"),
    click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]..."),
)
"""``-m``, SCRIPT and ARGS, as `is_module`, `script` and `args`."""

env_option = click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Variable for all ranks.")
python_option = click.option(
    "--python", default=sys.executable, metavar="PATH", help="Interpreter on all machines.  [default: this one]"
)
ranks_option = click.option(
    "-n", "--workers", type=number(RANKS), required=True, metavar="N", help="Ranks on all machines together."
)
port_option = click.option(
    "--port", type=number(PORT), default=29500, show_default=True, metavar="PORT",
    help="Where the ranks of several machines meet, on the first.",
)  # fmt: skip


def threads_option(text: str = "Threads per rank.") -> Decorator:
    """Return ``--threads``."""
    return click.option(
        "--threads", type=number(THREADS), default=1, show_default=True, metavar="T", help=text
    )  # fmt: skip


def size_options(machine: str) -> Decorator:
    """Return ``--nodes``, ``--workers-per-node`` and ``--gpus-per-node``; `machine` is what the engine calls a node."""
    return stack(
        click.option("--nodes", type=number(NODES), default=1, show_default=True, metavar="N",
                     help=f"Number of {machine}s."),
        click.option("-n", "--workers-per-node", type=number(WORKERS), default=1, show_default=True, metavar="W",
                     help=f"Ranks of each {machine}."),
        click.option("--gpus-per-node", type=number(DEVICES), default=0, show_default=True, metavar="G",
                     help=f"GPUs of each {machine}."),
    )  # fmt: skip


def name_option(text: str) -> Decorator:
    """Return ``--name``."""
    return click.option("--name", metavar="NAME", help=f"{text}  [default: the script's]")


def dry_run_option(what: str) -> Decorator:
    """Return ``--dry-run``; `what` would be sent."""
    return click.option("--dry-run", is_flag=True, help=f"Print {what}, and send nothing.")


def follow_options(what: str) -> Decorator:
    """Return ``--detach``, which prints `what` of the job instead of following it, and ``--interval``."""
    return stack(
        click.option("--detach", is_flag=True, help=f"Print {what}, and do not follow the job."),
        click.option("--interval", "interval_s", type=number(INTERVAL), default=2.0, show_default=True,
                     metavar="S", help="Between two looks at the job."),
    )  # fmt: skip
