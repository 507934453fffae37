"""Sending manifests and following a job, with a stand-in that answers as kubectl does; the real one: tests/cluster."""

import json
import threading

import pytest
from test_kubernetes_state import ended, job, pod

from unisono.errors import LaunchError
from unisono.launchers.engines.following import PATIENCE
from unisono.launchers.engines.kubernetes import KubernetesJob
from unisono.launchers.engines.kubernetes_client import follow, how_to_end, submit

JOB = KubernetesJob(name="train", image="it", target=("it.py",), namespace="team")
PAIR = KubernetesJob(name="train", image="it", target=("it.py",), nodes=2)
RUNNING = {"running": {}}
DONE = job(("Complete", "True", "CompletionsReached", ""))
FAILED = job(("Failed", "True", "BackoffLimitExceeded", ""))

# `get` gives one prepared answer after the other, the last one for ever; `logs` what lies there for its n-th call.
KUBECTL = """#!/bin/bash
here=$(dirname "$0"); echo "$*" >> "$here/asked"
[ "$1" = -n ] && shift 2
if [ "$1" = get ]; then
    n=$(cat "$here/count" 2>/dev/null || echo 0); echo $((n + 1)) > "$here/count"
    while [ ! -e "$here/answer-$n" ]; do n=$((n - 1)); done
    if grep -q ^error "$here/answer-$n"; then cat "$here/answer-$n" >&2; exit 1; fi
    cat "$here/answer-$n"
elif [ "$1" = logs ]; then
    pod=${!#}; n=0; while [ -e "$here/read-$pod-$n" ]; do n=$((n + 1)); done; : > "$here/read-$pod-$n"
    cat "$here/log-$pod-$n" || exit 1
fi
"""


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """Return a function that prepares answers; texts are kubectl's errors."""
    tool = tmp_path / "kubectl"
    tool.write_text(KUBECTL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    def prepare(*answers, **logs):
        for number, answer in enumerate(answers):
            text = answer if isinstance(answer, str) else json.dumps({"kind": "List", "items": list(answer)})
            (tmp_path / f"answer-{number}").write_text(text + "\n")
        for name, pieces in logs.items():
            for number, lines in enumerate(pieces):
                stamped = "".join(f"2026-11-21T10:00:0{second}Z {line}\n" for second, line in lines)
                (tmp_path / f"log-{name}-{number}").write_text(stamped)

    return prepare


def watch(what=JOB):
    told, written = [], []
    code = follow(what, tell=told.append, write=written.append, interval_s=0.01)
    return code, told, b"".join(written).decode()


def test_it_is_followed_to_its_end(kubectl, tmp_path):
    """News once each, the output without times, code 0; in the job's own namespace and no other."""
    waits = pod("p0", "Pending", node="", state={"waiting": {"reason": "ContainerCreating"}})
    runs, ends = pod("p0", state=RUNNING), pod("p0", "Succeeded", state=ended(0, reason="Completed"))
    kubectl([job(), waits], [job(), runs], [DONE, ends], p0=[[(1, "step 1"), (2, "step 2")]] * 9)
    code, told, written = watch()
    assert (code, written) == (0, "step 1\nstep 2\n")
    assert told == [
        "pod p0: pending (ContainerCreating)",
        "pod p0: running on n1",
        "pod p0: succeeded, exit code 0",
        "job train: complete, exit code 0",
    ]
    assert all(line.startswith("-n team ") for line in (tmp_path / "asked").read_text().splitlines())


def test_output_that_was_cut_off_goes_on_where_it_was(kubectl, tmp_path):
    """Asked for from the last second on: what was written already is not written again, and nothing is missing."""
    runs, ends = pod("p0", state=RUNNING), pod("p0", "Succeeded", state=ended(0))
    pieces = [[(1, "a"), (2, "b")], [(2, "b"), (3, "c")], *[[(3, "c"), (4, ""), (5, "d 2026")]] * 9]
    kubectl([job(), runs], [job(), runs], [job(), runs], [job(), runs], [DONE, ends], p0=pieces)
    assert watch()[2] == "a\nb\nc\n\nd 2026\n"
    assert "--since-time=2026-11-21T10:00:02Z" in (tmp_path / "asked").read_text()


def test_pods_are_told_apart_and_replaced_ones_followed(kubectl):
    """Lines begin with the pod's place where there are several; the code is that of the one that failed first."""
    one, other = pod("p0", state=RUNNING), pod("p1", index="1", state=RUNNING)
    lost, new = pod("p1", "Failed", index="1", state=ended(9)), pod("p2", index="1", state=RUNNING)
    last = [pod("p0", "Failed", state=ended(1, "2026-11-21T10:06:00Z")), lost]
    last.append(pod("p2", "Failed", index="1", state=ended(1, "2026-11-21T10:06:00Z")))
    kubectl(
        [job(), one, other], [job(), one, lost, new], [FAILED, *last],
        p0=[[(1, "zero")]] * 9, p1=[[(1, "one")]] * 9, p2=[[(2, "two")]] * 9,
    )  # fmt: skip
    code, told, written = watch(PAIR)
    assert code == 9
    assert sorted(written.splitlines()) == ["[0] zero", "[1] one", "[1] two"]
    assert told[-1] == "job train: failed (BackoffLimitExceeded), exit code 9"


def test_a_deleted_job(kubectl):
    """Not followed for ever, nor taken for a success."""
    kubectl([job(), pod("p0", state=RUNNING)], [], p0=[[]])
    with pytest.raises(LaunchError, match=r"job.batch/train is gone: somebody has deleted it\. Hint"):
        watch()


def test_a_cluster_that_is_away_for_a_moment(kubectl, tmp_path):
    """It is asked again; in vain only so often, and a refusal is final. The job's own fate is said."""
    away = "error: Unable to connect to the server: dial tcp: refused"
    kubectl(away, away, [DONE])
    assert watch()[0] == 0
    for answer, asked in ((away, PATIENCE), ('error: pods is forbidden (Forbidden): User "me"', 1)):
        (tmp_path / "count").unlink()
        kubectl(answer, answer, answer)
        with pytest.raises(LaunchError, match=r"(?s)kubectl says nothing about the job.*Hint: the job itself goes on"):
            watch()
        assert (tmp_path / "count").read_text() == f"{asked}\n"


def test_output_that_cannot_be_had_is_said_once(kubectl, tmp_path):
    """Somebody may see pods, but not their logs: the job is followed all the same."""
    runs, ends = pod("p0", state=RUNNING), pod("p0", "Succeeded", state=ended(0))
    kubectl(*[[job(), runs]] * 9, [DONE, ends])
    code, told, written = watch()
    assert (code, written) == (0, "")
    assert len([line for line in told if line.startswith("no output of pod p0: cat: ")]) == 1


def test_nobody_reads_the_output(kubectl):
    """As with any other verb, the following ends; no thread dies in silence."""
    kubectl([job(), pod("p0", state=RUNNING)], p0=[[(1, "a")]] * 99)
    before = threading.active_count()

    def broken(_):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        follow(JOB, tell=lambda _: None, write=broken, interval_s=0.01)
    assert threading.active_count() == before


def test_a_refusal_names_what_was_made_before(tmp_path, monkeypatch):
    """It makes what it can before: the reader must know of the rest."""
    tool = tmp_path / "kubectl"
    tool.write_text(
        "#!/bin/bash\ncat > /dev/null; echo 'service/train created'; "
        "echo 'Error from server (AlreadyExists): jobs.batch \"train\" already exists' >&2; exit 1\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(LaunchError, match=r"(?s)already exists.*to remove it: kubectl -n team delete service/train$"):
        submit(JOB)


def test_how_to_end_it():
    """The job first, so that nothing makes its pods again."""
    assert how_to_end(JOB) == (
        "kubectl -n team delete job.batch/train service/train networkpolicy.networking.k8s.io/train"
    )
