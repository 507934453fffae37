"""What kubectl says of a job and its pods, in the published form; the real kubectl says it in tests/cluster."""

import itertools
import json

import pytest

from unisono.errors import LaunchError
from unisono.launchers.engines.kubernetes import KINDS, KubernetesJob, manifests
from unisono.launchers.engines.kubernetes_state import exit_code, moment, names, news, parse_state

MADE = "2026-11-21T10:00:00Z"


def pod(name="train-0-abcde", phase="Running", made=MADE, index="0", node="n1", state=None, **status):
    """Return a pod as the API gives it."""
    containers = {} if state is None else {"containerStatuses": [{"name": "node", "state": state}]}
    labels = {"batch.kubernetes.io/job-completion-index": index} if index else {}
    return {
        "kind": "Pod", "metadata": {"name": name, "creationTimestamp": made, "labels": labels},
        "spec": {"nodeName": node} if node else {}, "status": {"phase": phase, **containers, **status},
    }  # fmt: skip


def job(*conditions, kind="Job", name="train"):
    """Return a job with conditions of these types, reasons and messages."""
    found = [
        {"type": what, "status": status, "reason": reason, "message": message}
        for what, status, reason, message in conditions
    ]
    return {"kind": kind, "metadata": {"name": name, "creationTimestamp": MADE}, "status": {"conditions": found}}


def parse(*entries, kind="Job"):
    return parse_state(json.dumps({"kind": "List", "items": list(entries)}), kind, "train")


def ended(code, at="2026-11-21T10:05:00Z", reason="Error"):
    return {"terminated": {"exitCode": code, "finishedAt": at, "reason": reason}}


def test_a_pod_that_runs():
    """Its place, its machine, and that there is output."""
    (found,) = parse(job(), pod(state={"running": {"startedAt": MADE}})).pods
    assert (found.name, found.index, found.state, found.machine) == ("train-0-abcde", "0", "running", "n1")
    assert found.has_started
    assert not found.has_ended
    assert (found.code, found.reason) == (None, "")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (
            pod(phase="Pending", state={"waiting": {"reason": "ImagePullBackOff", "message": "Back-off\npulling x"}}),
            "ImagePullBackOff: Back-off pulling x",
        ),
        (
            pod(phase="Pending", node="", conditions=[
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes fit"},
            ]),
            "Unschedulable: 0/3 nodes fit",
        ),
        (pod(phase="Failed", reason="Evicted", message="low on memory"), "Evicted: low on memory"),
        (pod(phase="Failed", state=ended(137, reason="OOMKilled")), "OOMKilled"),
        (pod(phase="Failed", state=ended(1)), ""),
    ],
)  # fmt: skip
def test_why_a_pod_waits_or_has_failed(entry, reason):
    """In Kubernetes' own words; an exit code speaks for itself."""
    assert parse(job(), entry).pods[0].reason == reason


@pytest.mark.parametrize(
    ("kind", "condition", "state"),
    [
        ("Job", ("Complete", "True", "CompletionsReached", "m"), "complete"),
        ("Job", ("Failed", "True", "BackoffLimitExceeded", "too often"), "failed"),
        ("JobSet", ("Completed", "True", "AllJobsCompleted", "m"), "complete"),
        ("JobSet", ("Failed", "True", "FailedJobs", "too often"), "failed"),
        ("TrainJob", ("Complete", "True", "JobsCompleted", "m"), "complete"),
        ("TrainJob", ("Suspended", "True", "Suspended", "m"), "suspended"),
        ("TrainJob", ("Suspended", "False", "Resumed", "m"), "pending"),
        ("Job", ("FailureTarget", "True", "BackoffLimitExceeded", "m"), "pending"),  # not yet: its pods still end
        ("Job", ("Failed", "False", "r", "m"), "pending"),
    ],
)
def test_how_a_job_is(kind, condition, state):
    """Each kind has words of its own; a condition counts where it is true."""
    found = parse(job(condition, kind=kind), kind=kind)
    assert found.state == state
    assert found.has_ended == (state in ("complete", "failed"))
    if state == "failed":
        assert found.reason == f"{condition[2]}: too often"


def test_pods_of_an_older_job_of_that_name_do_not_count():
    """A deleted job's pods linger; another job with the label is not this one."""
    old = pod("train-0-older", made="2026-11-21T09:59:59Z")
    assert [one.name for one in parse(job(name="other"), job(), old, pod()).pods] == ["train-0-abcde"]


def test_a_job_that_is_gone():
    """Deleted: its pods alone say nothing."""
    assert parse(pod()) is None
    assert parse() is None


@pytest.mark.parametrize("text", ["", "nothing", "[]", '{"items": [{}]}', '{"items": 3}'])
def test_an_answer_of_another_form_is_refused(text):
    """Not taken for a job that is gone."""
    with pytest.raises(LaunchError, match="from kubectl, got"):
        parse_state(text, "Job", "train")


def test_each_change_is_told_once():
    """Pods that wait, run, fail, are replaced and end; then the job."""
    running = {"running": {}}
    first = parse(job(), pod(phase="Pending", node="", state={"waiting": {"reason": "ContainerCreating"}}))
    second = parse(job(), pod(state=running), pod("train-1-fghij", index="1", node="n2", state=running))
    third = parse(job(), pod("train-0-new", state=running), pod("train-1-fghij", "Failed", index="1", state=ended(3)))
    last = parse(
        job(("Failed", "True", "BackoffLimitExceeded", "")),
        pod("train-0-new", "Succeeded", state=ended(0, reason="Completed")),
        pod("train-1-fghij", "Failed", index="1", state=ended(3)),
    )
    states = [None, first, first, second, second, third, last]
    told = [news("train", before, now) for before, now in itertools.pairwise(states)]
    assert told == [
        ["pod train-0-abcde: pending (ContainerCreating)"],
        [],
        ["pod train-0-abcde: running on n1", "pod train-1-fghij: running on n2"],
        [],
        ["pod train-0-new: running on n1", "pod train-1-fghij: failed, exit code 3", "pod train-0-abcde: gone"],
        ["pod train-0-new: succeeded, exit code 0", "job train: failed (BackoffLimitExceeded), exit code 3"],
    ]


def test_the_code_is_that_of_the_pod_that_failed_first():
    """Those that fail after it only miss it; without any code, 1; complete is 0 whatever failed before."""
    pods = [
        pod("train-0-a", "Failed", state=ended(143, "2026-11-21T10:05:02Z")),
        pod("train-1-b", "Failed", state=ended(7, "2026-11-21T10:05:01.5Z")),
        pod("train-1-c", "Succeeded", state=ended(0, "2026-11-21T10:01:00Z")),
    ]
    assert exit_code(parse(job(("Failed", "True", "r", "m")), *pods)) == 7
    assert exit_code(parse(job(("Complete", "True", "r", "m")), *pods)) == 0
    assert exit_code(parse(job(("Failed", "True", "r", "m")))) == 1


def test_times_of_any_length():
    """Fractions have as many digits as they like, and zones count: text order would be wrong."""
    assert moment("2026-11-21T10:00:00.66Z") < moment("2026-11-21T10:00:00.669Z")
    assert moment("2026-11-21T10:00:00.123456789Z") % 1_000_000_000 == 123_456_789
    assert moment("2026-11-21T11:00:00+01:00") == moment(MADE)
    with pytest.raises(LaunchError, match="expected a time such as"):
        moment("yesterday")


@pytest.mark.parametrize("kind", KINDS)
def test_the_objects_by_name(kind):
    """As kubectl takes them, group and all."""
    found = names(manifests(KubernetesJob(name="train", image="it", target=("it.py",), kind=kind)))
    last = {"job": "job.batch", "jobset": "jobset.jobset.x-k8s.io", "trainjob": "trainjob.trainer.kubeflow.org"}[kind]
    assert found[0] == "networkpolicy.networking.k8s.io/train"
    assert found[-1] == f"{last}/train"
    assert ("service/train" in found) == (kind == "job")
