"""``unisono launch ray``: start ranks in a placement group of Ray."""

from typing import Any

import click

from unisono.cli.launch import ENGINES
from unisono.cli.launch.options import AFTER_SCRIPT, check_json, dry_run_option, program_arguments
from unisono.cli.options.fields import field_options, result_options
from unisono.cli.output.outcome import verb
from unisono.cli.output.tables import answer
from unisono.launchers.engines.ray_job import RayJob
from unisono.launchers.engines.ray_runner import run_on_ray
from unisono.launchers.spec import find_program
from unisono.options.fields import taken


@click.command(context_settings=AFTER_SCRIPT, short_help=ENGINES["ray"])
@field_options(RayJob)
@dry_run_option("what Ray would be asked for")
@result_options
@program_arguments
@verb("launch ray")
def ray(script: str, args: tuple[str, ...], is_module: bool, dry_run: bool, as_json: bool, **given: Any) -> int:
    """Start SCRIPT on a Ray cluster: all ranks or none, those of a node side by side.

    Scripts written for torchrun run unchanged. SIGTERM and Ctrl-C are passed on: a run with out=... stops after the
    step in progress and saves.

    Exit code: 0 if all ranks ended well, or --dry-run; else that of the rank that failed first (128 + n for signal n;
    255 if its node was lost); 75 if the run was asked to stop and has saved; 1 if Ray is missing or has no room; 2 for
    wrong usage.
    """
    check_json(as_json, is_printed=dry_run)
    if given["working_dir"] is None:
        find_program(script, is_module=is_module)
    kind = "module" if is_module else "script"
    job = RayJob(kind=kind, target=script, args=args, **taken(RayJob, given))
    if dry_run:
        bundle = ", ".join(f"{name}: {amount:g}" for name, amount in job.bundle.items())
        each = f"each rank: {kind} {script} {' '.join(args)}".rstrip()
        plain = {"workers": job.workers, "bundle": job.bundle, "strategy": job.strategy, kind: script, "args": args}
        answer(plain, as_json, lambda: [f"placement group: {job.workers} x {{{bundle}}}, {job.strategy}", each])
        return 0
    return run_on_ray(job)
