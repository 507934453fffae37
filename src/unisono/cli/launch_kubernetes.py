"""``unisono launch kubernetes``: write manifests and hand them to kubectl."""

import shutil
import subprocess
import sys
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.outcome import perform

if TYPE_CHECKING:
    from unisono.launchers.kubernetes import KubernetesJob

_KINDS = ("job", "jobset", "trainjob")


@click.command(
    context_settings={"allow_interspersed_args": False}, short_help="Write manifests and hand them to kubectl."
)
@click.option("--image", required=True, metavar="IMAGE", help="Container image with torch, unisono and SCRIPT.")
@click.option(
    "--kind",
    type=click.Choice(_KINDS),
    default="job",
    show_default=True,
    help="job: an Indexed Job with a headless service, on any cluster. jobset: JobSet. trainjob: Kubeflow Trainer.",
)
@click.option("--name", metavar="NAME", help="Name of all objects.  [default: the script's]")
@click.option("--namespace", metavar="NAME", help="Namespace.  [default: kubectl's]")
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Pods.")
@click.option(
    "-n",
    "--workers-per-node",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="W",
    help="Ranks in each.",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, metavar="T", help="Per rank.")
@click.option("--gpus-per-node", type=click.IntRange(min=0), default=0, metavar="G", help="GPUs of each pod.")
@click.option("--cpu", default="", metavar="CPUS", help="CPUs of each pod.  [default: one for each thread]")
@click.option("--memory", default="", metavar="SIZE", help="Memory of each pod, such as 8Gi.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Variable for all ranks.")
@click.option("--volume", "claims", multiple=True, metavar="CLAIM=PATH", help="Mount a persistent volume claim.")
@click.option("--node-selector", "labels", multiple=True, metavar="LABEL=VALUE", help="What machines must have.")
@click.option("--max-restarts", type=click.IntRange(min=0), default=3, show_default=True, metavar="K", help="Failures.")
@click.option(
    "--grace",
    "grace_s",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    metavar="S",
    help="Seconds that a run has to stop and save when its pod must go.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=29500, show_default=True, metavar="PORT", help="Where ranks meet."
)
@click.option("--dry-run", is_flag=True, help="Print the manifests, and send nothing.")
@click.argument("script", metavar="SCRIPT")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def kubernetes(script: str, args: tuple[str, ...], dry_run: bool, **given: Any) -> None:
    """Create SCRIPT, a path in the image, as a job on a Kubernetes cluster.

    Pods are torchrun's nodes. A pod that must go has --grace seconds; a run with out=... on a volume that all pods
    share stops after the step in progress, saves, and goes on in the pods that follow.

    Exit code: 0 if kubectl has created all objects, or --dry-run; 1 if there is no kubectl or it refuses; 2 for wrong
    usage.
    """
    sys.exit(perform("launch kubernetes", lambda: _kubernetes(script, args, dry_run, given)))


def _kubernetes(script: str, args: tuple[str, ...], dry_run: bool, given: dict[str, Any]) -> None:
    from unisono.errors import LaunchError
    from unisono.launchers.kubernetes import manifests, to_yaml

    job = plan(script, args, given)
    text = to_yaml(manifests(job))
    if dry_run:
        click.echo(text, nl=False)
        return
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise LaunchError(
            "expected kubectl on PATH, got none. Hint: install it and point it at the cluster, or send the output of "
            "--dry-run from where it is: unisono launch kubernetes --dry-run ... | kubectl create -f -"
        )
    done = subprocess.run([kubectl, "create", "-f", "-"], input=text, capture_output=True, text=True, check=False)
    click.echo(done.stdout, nl=False)
    if done.returncode != 0:
        raise LaunchError(f"kubectl create ended with code {done.returncode}: {done.stderr.strip()}")
    where = "" if job.namespace is None else f"-n {job.namespace} "
    click.echo(
        f"follow it: kubectl {where}logs -f --prefix --max-log-requests {max(5, job.nodes)} "
        f"-l app.kubernetes.io/instance={job.name}",
        err=True,
    )


def plan(script: str, args: tuple[str, ...], given: dict[str, Any]) -> "KubernetesJob":
    """Return the job that the options describe, checked.

    Raises:
        ConfigError: A setting is out of range, or no name can be made of the script's.
    """
    from unisono.cli.settings import pairs
    from unisono.launchers.kubernetes import KubernetesJob

    settings = {name: given[name] for name in given if name not in ("name", "variables", "claims", "labels")}
    claims = pairs("--volume", given["claims"])
    return KubernetesJob(
        name=given["name"] or PurePosixPath(script).stem.lower().replace("_", "-"),
        target=(script, *args),
        env=pairs("--env", given["variables"]),
        volumes={path: claim for claim, path in claims.items()},
        node_selector=pairs("--node-selector", given["labels"]),
        **settings,
    )
