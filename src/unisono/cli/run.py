"""``unisono run``: start a script or module on several processes, of this host or of several.

In: the command line. Out: the exit code of the rank that failed first. Imports the launcher only when it
runs.
"""

import os
import sys
from typing import Any

import click

from unisono.cli.launch.options import AFTER_SCRIPT, program_arguments
from unisono.cli.options.nodes import nodes_options, plan_nodes
from unisono.cli.options.settings import number
from unisono.cli.options.torchrun import read_environment_too, torchrun_options, understand
from unisono.cli.outcome import command_line, perform
from unisono.nodes.start import start
from unisono.options.quantities import RESTARTS, SECONDS, THREADS


@click.command(
    context_settings=AFTER_SCRIPT,
    short_help="Start a script on several processes, of one machine or more.",
)
@click.option(
    "-n",
    "--workers",
    default="auto",
    show_default=True,
    metavar="N|auto",
    help="Number of processes (on each host). auto: one per GPU, else one per core.",
)
@click.option(
    "--threads",
    type=number(THREADS),
    metavar="T",
    help="Threads per process.  [default: OMP_NUM_THREADS, or 1]",
)
@click.option(
    "--devices",
    metavar="LIST|cpu",
    help="GPUs to use: indices among the visible ones, or names, such as 0,2; cpu: none.  [default: the visible ones]",
)
@click.option("--share-devices", is_flag=True, help="Let several processes compute on one GPU.")
@click.option(
    "--output",
    type=click.Choice(["auto", "prefix", "leader"]),
    default="auto",
    show_default=True,
    help="prefix: each line carries its rank. leader: rank 0 writes directly, so that a progress bar works; "
    "the others' lines go to the error output. auto: leader on a terminal, else prefix.",
)
@click.option(
    "--backend",
    type=click.Choice(["shm"]),
    help="shm: a script that asks torch.distributed for gloo (or for nothing, without a GPU) gets shared memory: "
    "faster, and the same sums for any buckets.  [default: what the script asks for]",
)
@click.option(
    "--max-restarts",
    type=number(RESTARTS),
    default=0,
    show_default=True,
    metavar="K",
    help="Start the processes again after one has died; K restarts in a row may pass without progress. For scripts "
    "that resume, as unisono.Run does.",
)
@click.option(
    "--heartbeat",
    type=number(SECONDS),
    metavar="S",
    help="Seconds of silence after which a process counts as stuck; 0: for ever.  [default: 10]",
)
@click.option(
    "--hang-report",
    type=number(SECONDS),
    metavar="S",
    help="Seconds without progress after which it is said where each process is; 0: never.  [default: 30]",
)
@click.option(
    "--stop-grace",
    type=number(SECONDS),
    metavar="S",
    help="Seconds that a run has to finish its step and save when it is asked to stop.  [default: 30]",
)
@nodes_options
@torchrun_options
@program_arguments
def run(
    workers: str,
    threads: int | None,
    devices: str | None,
    share_devices: bool,
    is_module: bool,
    output: str,
    backend: str | None,
    max_restarts: int,
    heartbeat: float | None,
    hang_report: float | None,
    stop_grace: float | None,
    nodes: dict[str, Any],
    torchrun: dict[str, Any],
    script: str,
    args: tuple[str, ...],
) -> None:
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
    if output == "auto":
        output = "leader" if sys.stdout is not None and sys.stdout.isatty() else "prefix"
    target = (script, args, is_module)
    settings = watch_settings(max_restarts, heartbeat, hang_report, stop_grace)
    settings |= {"threads": threads, "output": output, "backend": backend, "share_devices": share_devices}
    settings["again"] = command_line()
    sys.exit(perform("run", lambda: _run(target, workers, devices, settings, nodes, torchrun)))


read_environment_too(run)


def watch_settings(
    max_restarts: int, heartbeat: float | None, hang_report: float | None = None, stop_grace: float | None = None
) -> dict[str, Any]:
    """Return those settings of a `LaunchSpec` that were given."""
    given = {"heartbeat_s": heartbeat, "hang_s": hang_report, "stop_grace_s": stop_grace}
    return {"max_restarts": max_restarts, **{name: value for name, value in given.items() if value is not None}}


def _run(
    target: tuple[str, tuple[str, ...], bool],
    workers: str,
    devices: str | None,
    settings: dict[str, Any],
    nodes: dict[str, Any],
    torchrun: dict[str, Any],
) -> None:
    # Not at the top: `unisono --help` must not pay for the launcher.
    from unisono.collectives.shm import gloo_hook
    from unisono.launchers.spec import (
        Backend,
        LaunchSpec,
        ModuleTarget,
        ProgramTarget,
        ScriptTarget,
        check_target,
        resolve_workers,
    )
    from unisono.system.machine import resolve_devices

    name, args, is_module = target
    what: ProgramTarget | ModuleTarget | ScriptTarget
    if torchrun["no_python"]:
        what = ProgramTarget(name=name, args=args)
    else:
        what = ModuleTarget(name=name, args=args) if is_module else ScriptTarget(path=name, args=args)
    check_target(what)
    settings["backend"] = settings["backend"] and Backend(settings["backend"], gloo_hook.__name__)
    chosen = resolve_devices(devices, os.environ)
    meant = understand(torchrun, workers, nodes, is_module=is_module)
    count = resolve_workers(meant.workers, devices=chosen)
    spec = LaunchSpec(target=what, workers=count, devices=chosen, **{**settings, **meant.settings})
    start(spec, plan_nodes(meant.nodes))
