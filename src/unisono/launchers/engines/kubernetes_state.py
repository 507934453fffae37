"""What kubectl says of a job and its pods: how far it is, what is new, and how it ended (pure).

In: the list that ``kubectl get KIND,pods -l ... -o json`` prints. Out: a `JobState`. Sources: the references of
https://kubernetes.io (PodStatus, JobStatus), https://jobset.sigs.k8s.io and https://www.kubeflow.org (conditions).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from unisono.errors import LaunchError

_ENDED = {"Complete": "complete", "Completed": "complete", "Failed": "failed"}
_INDEX = "batch.kubernetes.io/job-completion-index"
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod."""

    name: str  #: Its own.
    index: str  #: Its place among the job's pods, the node rank; empty while unknown.
    state: str  #: ``pending``, ``running``, ``succeeded``, ``failed`` or ``unknown``.
    reason: str  #: Why it waits or has failed, or empty.
    machine: str  #: Where it runs, or empty.
    code: int | None  #: Exit code of the ranks' launcher; None until it has ended.
    ended: str  #: When that was, as the cluster writes it; empty until then.
    has_started: bool  #: Whether there is output.

    @property
    def has_ended(self) -> bool:
        """Whether it will not run any more."""
        return self.state in ("succeeded", "failed")


@dataclass(frozen=True, slots=True)
class JobState:
    """A job and the pods that it has now."""

    #: ``pending``, ``suspended``, ``complete`` or ``failed``; while it is none of the last two its pods say more.
    state: str
    reason: str  #: Why it has failed, or empty.
    pods: tuple[PodState, ...]  #: In the order of their names.

    @property
    def has_ended(self) -> bool:
        """Whether no pod will be made any more."""
        return self.state in _ENDED.values()


def parse_state(text: str, kind: str, name: str) -> JobState | None:
    """Return what kubectl's list says; None where the job is not in it (any more).

    Pods that are older than the job were left by another one of the same name.

    Raises:
        LaunchError: It is no such list.
    """
    try:
        entries = json.loads(text)["items"]
        jobs = [entry for entry in entries if (entry["kind"], entry["metadata"]["name"]) == (kind, name)]
        pods = [entry for entry in entries if entry["kind"] == "Pod"]
        if not jobs:
            return None
        made = jobs[0]["metadata"]["creationTimestamp"]
        state, reason = _state_of(jobs[0])
        own = sorted(
            (_pod(pod) for pod in pods if pod["metadata"]["creationTimestamp"] >= made), key=lambda pod: pod.name
        )
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"expected a list of a {kind} and pods from kubectl, got {text[:200]!r}.") from error
    return JobState(state, reason, tuple(own))


def _state_of(job: Mapping[str, Any]) -> tuple[str, str]:
    conditions = {
        entry["type"]: entry for entry in job.get("status", {}).get("conditions") or () if entry["status"] == "True"
    }
    for kind, state in _ENDED.items():
        if kind in conditions:
            return state, "" if state == "complete" else _why(conditions[kind])
    return ("suspended" if "Suspended" in conditions else "pending"), ""


def _pod(pod: Mapping[str, Any]) -> PodState:
    status, metadata = pod.get("status", {}), pod["metadata"]
    container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
    now = container.get("state") or {}
    ended = now.get("terminated")
    unscheduled = (
        entry
        for entry in status.get("conditions") or ()
        if (entry["type"], entry["status"]) == ("PodScheduled", "False")
    )
    state = status.get("phase", "Unknown").lower()
    if state == "running" and metadata.get("deletionTimestamp"):
        reason = "is asked to stop"
    elif ended:
        reason = "" if ended.get("reason") in ("Completed", "Error", None) else str(ended["reason"])
    elif waiting := now.get("waiting"):
        reason = _why(waiting)
    elif "reason" in status:  # Evicted, NodeLost
        reason = _why(status)
    else:
        reason = next(map(_why, unscheduled), "") if state == "pending" else ""
    return PodState(
        name=metadata["name"],
        index=str({**metadata.get("annotations", {}), **metadata.get("labels", {})}.get(_INDEX, "")),
        state=state,
        reason=reason,
        machine=pod.get("spec", {}).get("nodeName", ""),
        code=ended["exitCode"] if ended else None,
        ended=(ended.get("finishedAt") or "") if ended else "",
        has_started=bool(ended or "running" in now),
    )


def _why(entry: Mapping[str, Any]) -> str:
    reason, message = entry.get("reason") or "", " ".join((entry.get("message") or "").split())
    return f"{reason}: {message}" if reason and message else reason or message


def news(name: str, before: JobState | None, now: JobState) -> list[str]:
    """Return one line for each pod, and one for the job, that is not as it was."""
    old = {pod.name: _told(pod) for pod in before.pods} if before else {}
    lines = [f"pod {pod.name}: {told}" for pod in now.pods if (told := _told(pod)) != old.get(pod.name)]
    gone = sorted(old.keys() - {pod.name for pod in now.pods})
    lines += [f"pod {pod}: gone" for pod in gone if old[pod].startswith(("pending", "running", "unknown"))]
    if (before.state if before else "pending") != now.state:
        code = f", exit code {exit_code(now)}" if now.has_ended else ""
        lines.append(f"job {name}: {now.state}{f' ({now.reason})' if now.reason else ''}{code}")
    return lines


def _told(pod: PodState) -> str:
    where = f" on {pod.machine}" if pod.machine and not pod.has_ended else ""
    why = f" ({pod.reason})" if pod.reason else ""
    return f"{pod.state}{where}{why}{f', exit code {pod.code}' if pod.code is not None else ''}"


def exit_code(job: JobState) -> int:
    """Return 0 for a job that is complete; else the code of the pod that failed first, or 1 where none tells."""
    if job.state == "complete":
        return 0
    failed = [pod for pod in job.pods if pod.code]
    return min(failed, key=lambda pod: (moment(pod.ended) if pod.ended else 0, pod.name)).code or 1 if failed else 1


def moment(text: str) -> int:
    """Return nanoseconds since 1970 of a time as the cluster writes it, fractions of any length.

    Raises:
        LaunchError: It is none.

    Example:
        >>> moment("1970-01-01T00:00:01.5Z")
        1500000000
    """
    match = _MOMENT.fullmatch(text)
    if not match:
        raise LaunchError(f"expected a time such as 2026-01-31T12:00:00.5Z from kubectl, got {text!r}.")
    whole = datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00"))
    return int(whole.timestamp()) * 1_000_000_000 + int((match[2] or "").ljust(9, "0"))


def names(manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return objects as kubectl is told of them: ``job.batch/train``."""
    found = []
    for entry in manifests:
        group = entry["apiVersion"].rpartition("/")[0]
        found.append(f"{entry['kind'].lower()}{'.' + group if group else ''}/{entry['metadata']['name']}")
    return found
