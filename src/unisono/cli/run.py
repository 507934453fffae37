"""``unisono run``: start a script or module on several processes of this host.

In: the command line. Out: the exit code of the rank that failed first. Imports the launcher only when it
runs.
"""

import sys

import click

from unisono.cli.outcome import perform


@click.command(
    # Everything after SCRIPT belongs to the script.
    context_settings={"allow_interspersed_args": False},
    short_help="Start a script on several processes of this machine.",
)
@click.option(
    "-n",
    "--workers",
    default="auto",
    show_default=True,
    metavar="N|auto",
    help="Number of processes. auto: one per GPU, else one per core.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="T",
    help="Threads per process.  [default: OMP_NUM_THREADS, or 1]",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
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
@click.argument("script", metavar="SCRIPT")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def run(
    workers: str,
    threads: int | None,
    is_module: bool,
    output: str,
    backend: str | None,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Start SCRIPT on several processes of this machine.

    Scripts written for torchrun and for torch.distributed.launch run unchanged. When a process fails, the
    others are stopped and the failure that came first is shown.

    Exit code: 0 if all processes ended well; else that of the process that failed first (128 + n for signal
    n); 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 141 if the reader of the output went away; 2
    for wrong usage.
    """
    if output == "auto":
        output = "leader" if sys.stdout is not None and sys.stdout.isatty() else "prefix"
    sys.exit(perform("run", lambda: _run(workers, threads, is_module, output, backend, script, args)))


def _run(
    workers: str,
    threads: int | None,
    is_module: bool,
    output: str,
    backend: str | None,
    script: str,
    args: tuple[str, ...],
) -> None:
    # Not at the top: `unisono --help` must not pay for the launcher.
    from unisono.launchers.local import run_local
    from unisono.launchers.spec import LaunchSpec, ModuleTarget, ScriptTarget, resolve_workers

    target = ModuleTarget(name=script, args=args) if is_module else ScriptTarget(path=script, args=args)
    count = resolve_workers(workers)
    run_local(LaunchSpec(target=target, workers=count, threads=threads, output=output, backend=backend))
