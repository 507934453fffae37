"""Manifests against the published schemas, from packages that hold them; and the pods' own command, played here.

Kubernetes' schemas come with PyPI's kubernetes-validate, those of Kubeflow Trainer and JobSet as the models of
kubeflow-trainer-api. Both go into an environment of their own.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.engines import DIGITS, ENVIRONMENT, PLAIN_DDP, alone, call, fingerprint_in, weights_in
from unisono.launchers.kubernetes import KINDS, KubernetesJob, manifests, to_yaml

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
JOB = KubernetesJob(
    name="digits",
    image="registry.example/unisono:0.1",
    target=("/app/train.py", "--epochs", "3"),
    namespace="team",
    nodes=2,
    workers_per_node=2,
    gpus_per_node=2,
    memory="8Gi",
    env={"A": "yes"},
    volumes={"/runs": "runs-claim"},
    node_selector={"pool": "gpu"},
)
CHECK = Path(__file__).parent / "programs" / "check_manifests.py"


@pytest.fixture(scope="module")
def check():
    """Return a function that holds manifests against the schemas; None where they fit, else what is wrong."""
    folder = Path("build/kubernetes-venv").absolute()
    python = str(folder / "bin" / "python")
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        packages = ["kubernetes-validate", "kubeflow-trainer-api", "pyyaml"]
        done = call(python, "-m", "pip", "install", "--disable-pip-version-check", "-q", *packages)
        if done.returncode != 0:
            pytest.skip(f"the schemas could not be installed: {done.stderr.strip()[-300:]}")
        (folder / "done").touch()

    def run(text: str) -> list[str]:
        done = subprocess.run([python, str(CHECK)], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_manifests_fit_the_published_schemas(check, kind):
    """Every object, strictly: no field that the schema does not know."""
    assert check(to_yaml(manifests(replace(JOB, kind=kind)))) == []


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("job", "completionMode:", "completionMod:"),
        ("job", "parallelism: 2", "parallelism: two"),
        ("job", "clusterIP: None", "clusterIp: None"),
        ("job", "containerPort: 29500", "containerPort: high"),
        ("jobset", "replicatedJobs:", "replicatedJob:"),
        ("jobset", "maxRestarts: 3", "maxRestart: 3"),
        ("jobset", "mountPath:", "mountpath:"),
        ("trainjob", "runtimeRef:", "runtime:"),
        ("trainjob", "numNodes: 2", "numNode: 2"),
    ],
)
def test_a_slip_would_be_found(check, kind, old, new):
    """The control: names and types that are nearly right are not."""
    text = to_yaml(manifests(replace(JOB, kind=kind)))
    assert check(text) == []
    assert old in text
    assert check(text.replace(old, new, 1)) != []


def play(job: KubernetesJob, cwd: Path) -> list[str]:
    """Play the pods of an Indexed Job as processes of this machine, with the variables of the manifest."""
    spec = next(entry for entry in manifests(job) if entry["kind"] == "Job")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    pods = []
    for index in range(spec["completions"]):
        env = {entry["name"]: entry.get("value", str(index)) for entry in container["env"]}
        assert [entry["name"] for entry in container["env"] if "value" not in entry] == ["PET_NODE_RANK"]
        env["PET_MASTER_ADDR"] = "127.0.0.1"  # what the first pod's name would lead to
        command = [sys.executable, *container["command"][1:], *container["args"]]
        pods.append(
            subprocess.Popen(
                command, env={**ENVIRONMENT, **env}, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    told = [pod.communicate(timeout=600) for pod in pods]
    assert [pod.returncode for pod in pods] == [0] * len(pods), told
    return [out for out, _ in told]


def test_the_pods_give_the_bits_of_one_process(tmp_path):
    """Two pods of two ranks, as the manifest would start them."""
    job = KubernetesJob(name="digits", image="it", target=(DIGITS,), nodes=2, workers_per_node=2, port=29613)
    first, second = play(job, tmp_path)
    assert fingerprint_in(first) == alone()
    assert "fingerprint" not in second
    plain = KubernetesJob(name="plain", image="it", target=(PLAIN_DDP,), nodes=2, port=29614)
    torchrun = call(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", PLAIN_DDP)
    assert weights_in(play(plain, tmp_path)[0]) == weights_in(torchrun.stdout)
