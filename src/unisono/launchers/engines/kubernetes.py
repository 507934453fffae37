"""A job for Kubernetes as manifests: a plain Indexed Job, a JobSet, or a TrainJob of Kubeflow Trainer (pure).

In: a `KubernetesJob`. Out: objects as plain values, and their text. A pod is a node of torchrun's: the index of the pod
among the job's is its node rank, and all meet at the first pod's stable host name (a headless service for the Indexed
Job; JobSet and Trainer make their own). Sources: the references of https://kubernetes.io (Job), https://jobset.sigs.k8s.io
and https://www.kubeflow.org (Trainer).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from unisono.errors import ConfigError
from unisono.launchers.engines.job import NodesJob
from unisono.options.fields import option
from unisono.options.quantities import GRACE, PORT, RESTARTS
from unisono.store.secret import VARIABLE

KINDS = ("job", "jobset", "trainjob")
CONTAINER = "node"
"""Name of the container; Kubeflow Trainer knows the training pods by it."""
INSTANCE = "app.kubernetes.io/instance"
"""Label of all objects and pods of one job, whose value is its name."""

_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|[KMGTP]i?)?")
_LONGEST_NAME = 40  # room for the indices that are appended; a host name has 63 characters
_USER = 1000  # of the image that our Dockerfile makes
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_TRAINER = "trainer.kubeflow.org"
_SECRET_KEY = "secret"
_TORCHRUN = ("python", "-m", "torch.distributed.run")

Manifest = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesJob(NodesJob):
    """One training on a cluster; the fields that users set say what they are."""

    unit: ClassVar[str] = "pod"

    target: tuple[str, ...]  #: What torchrun runs, as words: the script in the image and its arguments.
    image: str = option(text="Container image with torch, unisono and SCRIPT.", word="IMAGE")
    kind: str = option(
        "job", "job: an Indexed Job with a headless service, on any cluster. jobset: JobSet. trainjob: Kubeflow "
        "Trainer.", *KINDS,
    )  # fmt: skip
    name: str = option(text="Name of all objects.", usual="the script's")
    namespace: str | None = option(None, "Namespace.", usual="kubectl's")
    cpu: str = option("", "CPUs of each pod, such as 4 or 500m.", usual="one for each thread", word="CPUS")
    memory: str = option("", "Memory of each pod, such as 8Gi.", word="SIZE")
    #: Persistent volume claims by the path where they are mounted.
    volumes: Mapping[str, str] = option(
        text="Mount a persistent volume claim.", make=dict, key="volume", word="CLAIM=PATH"
    )
    node_selector: Mapping[str, str] = option(text="What machines must have.", make=dict, word="LABEL=VALUE")
    max_restarts: int = option(
        3, "Failures of a pod (jobset, trainjob: of all pods together) after which the job has failed.", of=RESTARTS
    )
    grace_s: int = option(
        60, "Seconds that a run has to stop and save when its pod must go.", of=GRACE, key="grace", word="S"
    )
    port: int = option(29500, "Where the ranks of several machines meet, on the first.", of=PORT, word="PORT")
    #: That the ranks share, as a Secret of the cluster's; empty makes none.
    secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        NodesJob.__post_init__(self)
        for name in (self.name, *([self.namespace] if self.namespace is not None else []), *self.volumes.values()):
            if not _LABEL.fullmatch(name) or len(name) > _LONGEST_NAME:
                raise ConfigError(
                    f"expected a name of at most {_LONGEST_NAME} lower case letters, digits and '-' that begins with a "
                    f"letter, got {name!r}."
                )
        for name in ("cpu", "memory"):
            quantity = getattr(self, name)
            if quantity and not _QUANTITY.fullmatch(quantity):
                raise ConfigError(f"expected {name} as a quantity such as 500m, 4 or 8Gi, got {quantity!r}.")
        for path in self.volumes:
            if not path.startswith("/") or ":" in path:
                raise ConfigError(f"expected --volume CLAIM=PATH with an absolute path, got the path {path!r}.")


def manifests(job: KubernetesJob) -> list[Manifest]:
    """Return the objects, in the order in which they are to be made."""
    made = {"job": _indexed_job, "jobset": _job_set, "trainjob": _train_job}[job.kind](job)
    # torch's stores believe whoever connects: only the job's own pods may.
    own = {"matchLabels": {INSTANCE: job.name}}
    spec = {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]}
    before = [_object(job, "networking.k8s.io/v1", "NetworkPolicy", spec)]
    if job.secret:
        secret = {**_object(job, "v1", "Secret", {}), "type": "Opaque", "stringData": {_SECRET_KEY: job.secret}}
        before.append({name: value for name, value in secret.items() if name != "spec"})
    return [*before, *made]


def render(job: KubernetesJob) -> str:
    """Return the objects as a stream of YAML documents, each written as JSON: no text in it can be mistaken."""
    return "".join(f"---\n{json.dumps(document, indent=2)}\n" for document in manifests(job))


def _object(job: KubernetesJob, version: str, kind: str, spec: Manifest) -> Manifest:
    metadata: Manifest = {"name": job.name, "labels": _labels(job)}
    if job.namespace is not None:
        metadata["namespace"] = job.namespace
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _labels(job: KubernetesJob) -> dict[str, str]:
    return {"app.kubernetes.io/name": "unisono", INSTANCE: job.name}


def _indexed_job(job: KubernetesJob) -> list[Manifest]:
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # the ranks meet before any of them could be called ready
        "selector": {INSTANCE: job.name},
        "ports": [{"name": "rendezvous", "port": job.port}],
    }
    pod = _pod(job, _rendezvous(job, f"{job.name}-0.{job.name}"))
    spec = {
        **_indexed(job),
        # Every pod of a run fails with the first: each of them counts.
        "backoffLimit": job.max_restarts * job.nodes,
        "template": {"metadata": {"labels": _labels(job)}, "spec": {"subdomain": job.name, **pod}},
    }
    return [_object(job, "v1", "Service", service), _object(job, "batch/v1", "Job", spec)]


def _job_set(job: KubernetesJob) -> list[Manifest]:
    pod = _pod(job, _rendezvous(job, f"{job.name}-{CONTAINER}-0-0.{job.name}"))
    template = {"metadata": {"labels": _labels(job)}, "spec": pod}
    spec: Manifest = {
        "network": {"enableDNSHostnames": True, "subdomain": job.name, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": job.max_restarts},
        "replicatedJobs": [
            {"name": CONTAINER, "replicas": 1, "template": {"spec": {**_indexed(job), "template": template}}}
        ],
    }
    spec["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] = 0  # the set starts all pods again, or none
    return [_object(job, "jobset.x-k8s.io/v1alpha2", "JobSet", spec)]


def _train_job(job: KubernetesJob) -> list[Manifest]:
    # A runtime of our own: what a TrainJob may change in somebody else's differs between Trainer's versions.
    template = {"metadata": {"labels": _labels(job)}, "spec": _pod(job, [])}
    runtime = {
        "mlPolicy": {"numNodes": job.nodes, "torch": {}},  # the processes of a node are the TrainJob's to say
        "template": {
            "spec": {
                "failurePolicy": {"maxRestarts": job.max_restarts},
                "replicatedJobs": [
                    {
                        "name": CONTAINER,
                        "template": {
                            "metadata": {"labels": {f"{_TRAINER}/trainjob-ancestor-step": "trainer"}},
                            "spec": {"backoffLimit": 0, "template": template},
                        },
                    }
                ],
            }
        },
    }
    trainer = {
        "image": job.image,
        "command": list(_TORCHRUN),
        "args": list(job.target),
        "numNodes": job.nodes,
        "numProcPerNode": job.workers_per_node,
        "resourcesPerNode": _resources(job),
    }
    reference = {"apiGroup": _TRAINER, "kind": "TrainingRuntime", "name": job.name}
    return [
        _object(job, f"{_TRAINER}/v1alpha1", "TrainingRuntime", runtime),
        _object(job, f"{_TRAINER}/v1alpha1", "TrainJob", {"runtimeRef": reference, "trainer": trainer}),
    ]


def _indexed(job: KubernetesJob) -> Manifest:
    return {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        # A machine that is drained or lost is nobody's failure.
        "podFailurePolicy": {
            "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
    }


def _rendezvous(job: KubernetesJob, first_pod: str) -> list[Manifest]:
    """Return torchrun's options as variables, as Kubeflow Trainer sets them too."""
    fixed = {
        "PET_NNODES": str(job.nodes),
        "PET_NPROC_PER_NODE": str(job.workers_per_node),
        "PET_MASTER_ADDR": first_pod,
        "PET_MASTER_PORT": str(job.port),
    }
    index = {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
    return [*_variables(fixed), index]


def _pod(job: KubernetesJob, rendezvous: list[Manifest]) -> Manifest:
    claims = [
        ({"name": f"claim-{i}", "persistentVolumeClaim": {"claimName": claim}}, path)
        for i, (path, claim) in enumerate(job.volumes.items())
    ]
    secret = {"name": job.name, "key": _SECRET_KEY}
    container = {
        "name": CONTAINER,
        "image": job.image,
        "command": list(_TORCHRUN),
        "args": list(job.target),
        # torchrun fixes the threads of several ranks only, and one rank would have other bits than two.
        "env": _variables({"OMP_NUM_THREADS": str(job.threads), "PYTHONUNBUFFERED": "1", **job.env})
        + rendezvous
        + ([{"name": VARIABLE, "valueFrom": {"secretKeyRef": secret}}] if job.secret else []),
        "ports": [{"name": "rendezvous", "containerPort": job.port}],
        "resources": _resources(job),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            *({"name": volume["name"], "mountPath": path} for volume, path in claims),
        ],
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.grace_s,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"nodeSelector": dict(job.node_selector)} if job.node_selector else {}),
        "containers": [container],
        # Containers get 64 MiB of /dev/shm, too little for data loaders and NCCL.
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}, *(volume for volume, _ in claims)],
    }


def _resources(job: KubernetesJob) -> Manifest:
    asked = {"cpu": job.cpu or str(job.workers_per_node * job.threads)}
    limits = {}
    if job.memory:
        asked["memory"] = limits["memory"] = job.memory
    if job.gpus_per_node:
        asked["nvidia.com/gpu"] = limits["nvidia.com/gpu"] = str(job.gpus_per_node)
    return {"requests": asked, **({"limits": limits} if limits else {})}


def _variables(values: Mapping[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in values.items()]
