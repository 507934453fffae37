"""``unisono launch kubernetes``: write manifests, hand them to kubectl, follow the job."""

from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import click

from unisono.cli.launch import ENGINES
from unisono.cli.launch.options import (
    AFTER_SCRIPT,
    check_json,
    dry_run_option,
    follow_options,
    followed,
    program_arguments,
    tell,
)
from unisono.cli.options.fields import field_options, result_options
from unisono.cli.output import outcome
from unisono.cli.output.outcome import INTERRUPTED, verb
from unisono.cli.output.tables import answer
from unisono.launchers.engines.kubernetes import KubernetesJob, render
from unisono.options.fields import taken


@click.command(context_settings=AFTER_SCRIPT, short_help=ENGINES["kubernetes"])
@field_options(KubernetesJob)
@dry_run_option("the manifests")
@follow_options("what was made")
@result_options
@program_arguments
@verb("launch kubernetes")
def kubernetes(
    script: str, args: tuple[str, ...], is_module: bool, dry_run: bool, as_json: bool, detach: bool, interval: float,
    **given: Any,
) -> int:  # fmt: skip
    """Create SCRIPT, a path in the image, as a job on a Kubernetes cluster, and follow it.

    Pods are torchrun's nodes. A pod that must go has --grace seconds; a run with out=... on a volume that all pods
    share stops after the step in progress, saves, and goes on in the pods that follow.

    Ctrl-C ends the following; the job goes on.

    Exit code: 0 when the job is complete, or --detach or --dry-run; else the code of the pod that failed first; 1 if
    there is no kubectl, it refuses, or the job was deleted; 2 for wrong usage; 130 after Ctrl-C.
    """
    from unisono.launchers.engines.following import write_to_stdout
    from unisono.launchers.engines.kubernetes_client import follow, how_to_end, submit
    from unisono.store.secret import new_secret

    check_json(as_json, is_printed=dry_run or detach, when="--dry-run or --detach")
    # A module's dots end where its name does, a file's before what kind it is.
    own = script.replace(".", "-") if is_module else PurePosixPath(script).stem
    settings = {"name": own.lower().replace("_", "-"), **taken(KubernetesJob, given)}
    settings["volumes"] = {path: claim for claim, path in settings.get("volumes", {}).items()}
    job = KubernetesJob(target=(*(["-m"] if is_module else []), script, *args), **settings)
    if dry_run:
        answer({"manifests": render(job)}, as_json, render(job).splitlines)
        return 0
    job = replace(job, secret=new_secret())
    made = submit(job)
    if detach:
        answer({"job": job.name, "made": made.splitlines()}, as_json, made.splitlines)
        tell(f"to end it: {how_to_end(job)}")
        return 0
    for line in made.splitlines():
        outcome.tell(line)
    following = partial(follow, job, tell=tell, write=write_to_stdout, interval_s=interval)
    code = followed(following, job.name, how_to_end(job))
    if code != INTERRUPTED:
        tell(f"its objects and logs stay in the cluster. To remove them: {how_to_end(job)}")
    return code
