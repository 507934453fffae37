"""``unisono launch kubernetes``: write manifests, hand them to kubectl, follow the job."""

import sys
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.launch import ENGINES
from unisono.cli.launch.options import (
    AFTER_SCRIPT,
    dry_run_option,
    env_option,
    follow_options,
    name_option,
    port_option,
    program_arguments,
    size_options,
    threads_option,
)
from unisono.cli.options.settings import number
from unisono.cli.outcome import INTERRUPTED, perform
from unisono.options.quantities import GRACE, RESTARTS

if TYPE_CHECKING:
    from unisono.launchers.engines.kubernetes import KubernetesJob

_KINDS = ("job", "jobset", "trainjob")


@click.command(context_settings=AFTER_SCRIPT, short_help=ENGINES["kubernetes"])
@click.option("--image", required=True, metavar="IMAGE", help="Container image with torch, unisono and SCRIPT.")
@click.option(
    "--kind",
    type=click.Choice(_KINDS),
    default="job",
    show_default=True,
    help="job: an Indexed Job with a headless service, on any cluster. jobset: JobSet. trainjob: Kubeflow Trainer.",
)
@name_option("Name of all objects.")
@click.option("--namespace", metavar="NAME", help="Namespace.  [default: kubectl's]")
@size_options("pod")
@threads_option()
@click.option("--cpu", default="", metavar="CPUS", help="CPUs of each pod.  [default: one for each thread]")
@click.option("--memory", default="", metavar="SIZE", help="Memory of each pod, such as 8Gi.")
@env_option
@click.option("--volume", "claims", multiple=True, metavar="CLAIM=PATH", help="Mount a persistent volume claim.")
@click.option("--node-selector", "labels", multiple=True, metavar="LABEL=VALUE", help="What machines must have.")
@click.option(
    "--max-restarts",
    type=number(RESTARTS),
    default=3,
    show_default=True,
    metavar="K",
    help="Failures of a pod (jobset, trainjob: of all pods together) after which the job has failed.",
)
@click.option(
    "--grace",
    "grace_s",
    type=number(GRACE),
    default=60,
    show_default=True,
    metavar="S",
    help="Seconds that a run has to stop and save when its pod must go.",
)
@port_option
@dry_run_option("the manifests")
@follow_options("what was made")
@program_arguments
def kubernetes(
    script: str,
    args: tuple[str, ...],
    is_module: bool,
    dry_run: bool,
    detach: bool,
    interval_s: float,
    **given: Any,
) -> None:
    """Create SCRIPT, a path in the image, as a job on a Kubernetes cluster, and follow it.

    Pods are torchrun's nodes. A pod that must go has --grace seconds; a run with out=... on a volume that all pods
    share stops after the step in progress, saves, and goes on in the pods that follow.

    Ctrl-C ends the following; the job goes on.

    Exit code: 0 when the job is complete, or --detach or --dry-run; else the code of the pod that failed first; 1 if
    there is no kubectl, it refuses, or the job was deleted; 2 for wrong usage; 130 after Ctrl-C.
    """
    target = ("-m", script, *args) if is_module else (script, *args)
    sys.exit(perform("launch kubernetes", lambda: _kubernetes(target, dry_run, detach, interval_s, given)))


def _kubernetes(target: tuple[str, ...], dry_run: bool, detach: bool, interval_s: float, given: dict[str, Any]) -> int:
    from unisono.launchers.engines.following import write_to_stdout
    from unisono.launchers.engines.kubernetes import render
    from unisono.launchers.engines.kubernetes_client import follow, how_to_end, submit

    job = plan(target, given)
    if dry_run:
        click.echo(render(job), nl=False)
        return 0
    from dataclasses import replace

    from unisono.store.secret import new_secret

    job = replace(job, secret=new_secret())
    made = submit(job)
    click.echo(made, nl=False, err=not detach)
    if detach:
        _tell(f"to end it: {how_to_end(job)}")
        return 0
    try:
        code = follow(job, tell=_tell, write=write_to_stdout, interval_s=interval_s)
    except KeyboardInterrupt:
        _tell(f"job {job.name} goes on. To end it: {how_to_end(job)}")
        return INTERRUPTED
    _tell(f"its objects and logs stay in the cluster. To remove them: {how_to_end(job)}")
    return code


def _tell(line: str) -> None:
    click.echo(f"unisono: {line}", err=True)


def plan(target: tuple[str, ...], given: dict[str, Any]) -> "KubernetesJob":
    """Return the job that the options describe, checked.

    Args:
        target: What torchrun runs, as words.
        given: The other options.

    Raises:
        ConfigError: A setting is out of range, or no name can be made of the script's.
    """
    from unisono.cli.options.settings import pairs
    from unisono.launchers.engines.kubernetes import KubernetesJob

    settings = {name: given[name] for name in given if name not in ("name", "variables", "claims", "labels")}
    claims = pairs("--volume", given["claims"], "CLAIM=PATH")
    # A module's dots end where its name does, a file's before what kind it is.
    own = target[1].replace(".", "-") if target[0] == "-m" else PurePosixPath(target[0]).stem
    return KubernetesJob(
        name=given["name"] or own.lower().replace("_", "-"),
        target=target,
        env=pairs("--env", given["variables"]),
        volumes={path: claim for claim, path in claims.items()},
        node_selector=pairs("--node-selector", given["labels"], "LABEL=VALUE"),
        **settings,
    )
