"""``unisono launch ray``: start ranks in a placement group of Ray."""

import sys
from typing import Any

import click

from unisono.cli.launch import ENGINES
from unisono.cli.launch.options import (
    AFTER_SCRIPT,
    dry_run_option,
    env_option,
    program_arguments,
    ranks_option,
    threads_option,
)
from unisono.cli.options.settings import number
from unisono.cli.outcome import perform
from unisono.options.quantities import CPUS, DEVICES, RESTARTS, SECONDS

_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@click.command(context_settings=AFTER_SCRIPT, short_help=ENGINES["ray"])
@ranks_option
@click.option(
    "--cpus-per-worker",
    "cpus",
    type=number(CPUS),
    default=1.0,
    show_default=True,
    metavar="C",
    help="CPUs that Ray keeps for each rank.",
)
@click.option(
    "--gpus-per-worker",
    "gpus",
    type=number(DEVICES),
    default=0,
    metavar="G",
    help="GPUs that Ray keeps for each rank.",
)
@threads_option()
@click.option(
    "--strategy",
    type=click.Choice(_STRATEGIES),
    default="PACK",
    show_default=True,
    help="How Ray spreads the ranks over nodes.",
)
@click.option(
    "--address", metavar="ADDRESS", help="Of the cluster.  [default: what Ray finds, else one on this machine]"
)
@click.option(
    "--working-dir",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Let Ray copy DIR to all nodes and start there.  [default: this directory, which they must share]",
)
@env_option
@click.option(
    "--max-restarts",
    type=number(RESTARTS),
    default=0,
    show_default=True,
    metavar="K",
    help="Start the ranks again after one has failed or its node is lost; for scripts that resume.",
)
@click.option(
    "--wait",
    "wait_s",
    type=number(SECONDS),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Longest wait for room.",
)
@dry_run_option("what Ray would be asked for")
@program_arguments
def ray(script: str, args: tuple[str, ...], is_module: bool, dry_run: bool, **given: Any) -> None:
    """Start SCRIPT on a Ray cluster: all ranks or none, those of a node side by side.

    Scripts written for torchrun run unchanged. SIGTERM and Ctrl-C are passed on: a run with out=... stops after the
    step in progress and saves.

    Exit code: 0 if all ranks ended well, or --dry-run; else that of the rank that failed first (128 + n for signal n;
    255 if its node was lost); 75 if the run was asked to stop and has saved; 1 if Ray is missing or has no room; 2 for
    wrong usage.
    """
    sys.exit(perform("launch ray", lambda: _ray(script, args, is_module, dry_run, given)))


def _ray(script: str, args: tuple[str, ...], is_module: bool, dry_run: bool, given: dict[str, Any]) -> int:
    from unisono.cli.options.settings import pairs
    from unisono.launchers.engines.ray_runner import RayJob, run_on_ray
    from unisono.launchers.spec import ModuleTarget, ScriptTarget, check_target

    if given["working_dir"] is None:
        check_target(ModuleTarget(name=script) if is_module else ScriptTarget(path=script))
    env = pairs("--env", given.pop("variables"))
    kind = "module" if is_module else "script"
    job = RayJob(kind=kind, target=script, args=args, env=env, **given)
    if dry_run:
        bundle = ", ".join(f"{name}: {amount:g}" for name, amount in job.bundle.items())
        click.echo(f"placement group: {job.workers} x {{{bundle}}}, {job.strategy}")
        click.echo(f"each rank: {kind} {script} {' '.join(args)}".rstrip())
        return 0
    return run_on_ray(job)
