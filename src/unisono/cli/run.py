"""``unisono run``: start a script or module on several processes, of this host or of several.

In: the command line. Out: the exit code of the rank that failed first. Imports the launcher only when it
runs.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from unisono.cli.launch.options import AFTER_SCRIPT, program_arguments
from unisono.cli.options.fields import ExplainedCommand, field_options
from unisono.cli.options.torchrun import TorchrunWords, inert_options, read_environment_too, understand
from unisono.cli.output.outcome import command_line, tell, verb
from unisono.environment import COMMAND
from unisono.errors import ConfigError
from unisono.launchers.spec import LaunchSpec, ProgramTarget, Target, check_target, find_program, resolve_workers
from unisono.nodes.plan import NodesOptions
from unisono.options.fields import taken
from unisono.recipes.catalog import RECIPES
from unisono.system.machine import resolve_devices

_NOT_MEANT = ("-m", "--module", "-h", "--help", "--help-all", "--version")
"""Options of the launcher that a script behind it mostly has too."""
_LAUNCHES = "unisono.launches"


def says(script: str, option: str) -> bool:
    """Whether the source of a script names an option; of a module, or a file that cannot be read, it is taken to."""
    try:
        source = Path(script).read_text(errors="replace").replace("_", "-")
    except OSError:
        return True
    return re.search(rf"(?<![\w-]){re.escape(option.replace('_', '-'))}(?![\w-])", source) is not None


def split_own(script: str, args: tuple[str, ...], options: Sequence[click.Parameter]) -> tuple[list[str], list[str]]:
    """Return what of a script's arguments is meant for the launcher, and the others.

    Meant are options of the launcher that the script does not say, with their values.
    """
    takes_value = {
        flag: not getattr(each, "is_flag", False)
        for each in options
        for flag in each.opts
        if flag.startswith("-") and flag not in _NOT_MEANT
    }
    ours: list[str] = []
    others: list[str] = []
    left = list(args)
    while left:
        arg = left.pop(0)
        flag, is_joined, _ = arg.partition("=")
        name = flag.replace("_", "-")
        if name not in takes_value or says(script, name):
            others.append(arg)
            continue
        ours.append(arg)
        if takes_value[name] and not is_joined and left and not left[0].startswith("-"):
            ours.append(left.pop(0))
    return ours, others


def _kept(given: dict[str, Any]) -> str:
    """Return what to say after Ctrl-C and SIGTERM: nothing once the launcher is there, which says it."""
    return "" if _LAUNCHES in click.get_current_context().meta else f"Nothing was begun. Again: {command_line()}"


def _refuse_slips(script: str, args: tuple[str, ...], workers: str, *, is_module: bool) -> None:
    """Refuse -np, which is read as -n p, before a script '2' is looked for, and a recipe; `ConfigError`."""
    if workers == "p":
        line = shlex.join(["unisono", "run", "-n", script, *args])
        raise ConfigError(f"expected -n N, got -np, which is mpirun's. Hint: {line}.")
    resolve_workers(workers)
    if script in RECIPES and not is_module and not Path(script).exists():
        raise ConfigError(f"expected a Python file, got the recipe {script!r}. Hint: unisono train {script}.")


@click.command(
    cls=ExplainedCommand,
    context_settings=AFTER_SCRIPT,
    short_help="Start a script on several processes, of one machine or more.",
)
@field_options(LaunchSpec, changes={"devices": {"old": ("--devices",)}})
@field_options(NodesOptions)
@field_options(TorchrunWords)
@inert_options
@program_arguments
@verb("run", _kept, keeps_runs=True)
def run(script: str, args: tuple[str, ...], is_module: bool, **given: Any) -> None:
    """Start SCRIPT on several processes of this machine; on several machines with --nnodes.

    Scripts written for torchrun and for torch.distributed.launch run unchanged, and torchrun's options are understood
    as they are (--nproc_per_node, --standalone, --tee; see docs/launching.md). When a process fails, the others are
    stopped and the failure that came first is shown.

    A script that trains through unisono.Run with out=... stops after the step in progress and saves when Ctrl-C,
    SIGTERM or SIGHUP comes (code 75: the same command goes on); a second Ctrl-C stops at once. Under nohup, SIGHUP is
    ignored: training outlives its terminal.

    Exit code: 0 if all processes ended well; else that of the process that failed first (128 + n for signal
    n); 75 if the run was asked to stop and has saved; 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 141 if
    the reader of the output went away; 2 for wrong usage or settings.
    """
    # Not at the top: `--help` must not pay for the launcher.
    from unisono.collectives.shm import gloo_hook
    from unisono.nodes.start import start

    words = TorchrunWords(**taken(TorchrunWords, given))
    _refuse_slips(script, args, given["workers"], is_module=is_module)
    target: Target = ProgramTarget(name=script, args=args)
    if words.no_python:
        check_target(target)
    else:
        target = find_program(script, args, is_module=is_module)
        given_away, others = split_own(script, args, run.params)
        if given_away:
            line = shlex.join([*given_away, *(["-m"] if is_module else []), script, *others])
            tell(
                f"{script} is given {shlex.join(given_away)}: the launcher does not read what stands behind. "
                f"Hint: for the launcher: unisono run {line}"
            )
    devices = resolve_devices(given.pop("gpus"), os.environ)
    hosts = taken(NodesOptions, given)
    workers, nodes, meant = understand(words, given.pop("workers"), hosts, is_module=is_module)
    settings = {
        **taken(LaunchSpec, given),
        **meant,
        "devices": devices,
        "again": command_line(),
        "env": {COMMAND: command_line()},
    }
    settings["backend_module"] = gloo_hook.__name__
    if settings.get("output") == "auto":
        settings["output"] = "leader" if sys.stdout is not None and sys.stdout.isatty() else "prefix"
    spec = LaunchSpec(target=target, workers=resolve_workers(workers, devices=devices), **settings)
    plan = nodes.plan()
    click.get_current_context().meta[_LAUNCHES] = True
    start(spec, plan)


read_environment_too(run)
