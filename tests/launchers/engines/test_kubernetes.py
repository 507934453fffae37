"""Manifests for Kubernetes; in tests/cluster they are held against the published schemas."""

from dataclasses import replace

import pytest

from unisono.errors import ConfigError
from unisono.launchers.engines.kubernetes import KINDS, KubernetesJob, manifests, render

JOB = KubernetesJob(
    name="digits",
    image="registry.example/unisono:0.1",
    target=("/app/train.py", "--epochs", "3"),
    nodes=2,
    workers_per_node=4,
    threads=2,
    env={"A": "yes"},
    volumes={"/runs": "runs-claim"},
)


def made(kind="job", **settings):
    return {entry["kind"]: entry for entry in manifests(replace(JOB, kind=kind, **settings))}


def pod_of(objects):
    """Return the pod that the ranks live in, whatever holds it."""
    if "Job" in objects:
        return objects["Job"]["spec"]["template"]
    owner = objects.get("JobSet") or objects["TrainingRuntime"]["spec"]["template"]
    return owner["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]


def variables(pod):
    (container,) = pod["spec"]["containers"]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


TEXT = """\
---
{
  "apiVersion": "v1",
  "kind": "Service",
  "metadata": {
    "name": "digits",
    "labels": {
      "app.kubernetes.io/name": "unisono",
      "app.kubernetes.io/instance": "digits"
    }
  },
  "spec": {
    "clusterIP": "None",
    "publishNotReadyAddresses": true,
    "selector": {
      "app.kubernetes.io/instance": "digits"
    },
    "ports": [
      {
        "name": "rendezvous",
        "port": 29500
      }
    ]
  }
}
"""


def test_the_text():
    """To the letter, for the smallest of the objects; all of them begin a document of their own."""
    assert TEXT in render(JOB)
    assert render(JOB).count("---\n") == 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_means_the_objects(kind):
    """A YAML parser reads what was meant, also of strings that look like something else."""
    yaml = pytest.importorskip("yaml")
    env = {"A": "yes", "B": "1e3", "C": "", "D": "a: b # c", "E": "null", "F": "line\nbreak", "G": "~", "H": '"ü"'}
    job = replace(JOB, kind=kind, env=env, memory="8Gi", node_selector={"on": "off", "1": "2"})
    assert list(yaml.safe_load_all(render(job))) == manifests(job)


@pytest.mark.parametrize("kind", KINDS)
def test_every_pod_runs_torchrun_on_the_script(kind):
    """The same container, whoever starts it: command, threads, shared memory, the volume of the runs."""
    pod = pod_of(made(kind))
    (container,) = pod["spec"]["containers"]
    assert container["name"] == "node"
    assert [*container["command"], *container["args"]] == ["python", "-m", "torch.distributed.run", *JOB.target]
    assert variables(pod).items() >= {"OMP_NUM_THREADS": "2", "A": "yes"}.items()
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume.pop("name"): volume for volume in pod["spec"]["volumes"]}
    assert volumes[mounts["/dev/shm"]] == {"emptyDir": {"medium": "Memory"}}
    assert volumes[mounts["/runs"]] == {"persistentVolumeClaim": {"claimName": "runs-claim"}}
    assert container["resources"] == {"requests": {"cpu": "8"}}


@pytest.mark.parametrize(
    ("kind", "first"), [("job", "digits-0.digits"), ("jobset", "digits-node-0-0.digits")], ids=["job", "jobset"]
)
def test_pods_meet_at_the_first_one(kind, first):
    """Its host name is stable, and the index of a pod is its node rank."""
    told = variables(pod_of(made(kind)))
    assert told["PET_NNODES"] == "2"
    assert told["PET_NPROC_PER_NODE"] == "4"
    assert (told["PET_MASTER_ADDR"], told["PET_MASTER_PORT"]) == (first, "29500")
    assert "job-completion-index" in told["PET_NODE_RANK"]["fieldRef"]["fieldPath"]


def test_the_indexed_job_has_names_for_its_pods():
    """The headless service selects them, and their subdomain is the service's name."""
    objects = made()
    job, service, pod = objects["Job"]["spec"], objects["Service"], pod_of(objects)
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 2, 2)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    assert job["backoffLimit"] == 6


def test_the_train_job_uses_its_own_runtime():
    """Trainer sets the meeting's variables itself; it must find image, nodes and processes."""
    objects = made("trainjob")
    spec = objects["TrainJob"]["spec"]
    assert spec["runtimeRef"] == {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "digits"}
    assert (spec["trainer"]["numNodes"], spec["trainer"]["numProcPerNode"]) == (2, 4)
    assert objects["TrainingRuntime"]["spec"]["mlPolicy"] == {"numNodes": 2, "torch": {}}
    assert not [name for name in variables(pod_of(objects)) if name.startswith("PET_")]


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_jobs_own_pods_may_connect(kind):
    """The stores of torch believe whoever connects."""
    objects = made(kind)
    policy = objects["NetworkPolicy"]["spec"]
    (rule,) = policy["ingress"]
    labels = policy["podSelector"]["matchLabels"]
    assert rule["from"] == [{"podSelector": {"matchLabels": labels}}]
    assert labels.items() <= pod_of(objects)["metadata"]["labels"].items()


@pytest.mark.parametrize("kind", KINDS)
def test_pods_have_no_rights_that_they_do_not_need(kind):
    """No root, no capabilities, no account."""
    pod = pod_of(made(kind))["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_resources():
    """Memory and GPUs are limits too; GPUs by NVIDIA's name."""
    (container,) = pod_of(made(gpus_per_node=4, memory="64Gi", cpu="16"))["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "4"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "4"},
    }


def test_the_namespace_is_named_only_if_it_is_given():
    """Otherwise kubectl's own holds."""
    assert all("namespace" not in entry["metadata"] for entry in manifests(JOB))
    assert {entry["metadata"]["namespace"] for entry in manifests(replace(JOB, namespace="team"))} == {"team"}


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "pod"},
        {"name": "Digits"},
        {"name": "9digits"},
        {"name": "a" * 41},
        {"namespace": ""},
        {"nodes": 0},
        {"gpus_per_node": 2},
        {"memory": "8 GB"},
        {"cpu": "-1"},
        {"volumes": {"runs": "claim"}},
        {"env": {"A=B": ""}},
    ],
    ids=str,
)
def test_what_a_cluster_would_refuse_is_refused_here(settings):
    """Names, quantities, paths; fewer GPUs than workers."""
    with pytest.raises(ConfigError, match="expected"):
        replace(JOB, **settings)


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_a_secret_is_an_object_of_its_own(kind):
    """Pods are told its name; the word stands in the Secret alone. Without one there is none."""
    word = "a-word-that-nobody-guesses"
    job = KubernetesJob(name="train", image="i", target=("t.py",), kind=kind, nodes=2, secret=word)
    secret, *others = sorted(manifests(job), key=lambda made: made["kind"] != "Secret")
    assert (secret["kind"], secret["stringData"]) == ("Secret", {"secret": word})
    assert "spec" not in secret
    assert word not in repr(others) + repr(job)
    assert repr(others).count("secretKeyRef") == 1
    assert render(job).count(word) == 1
    assert "Secret" not in render(replace(job, secret=""))
