"""Send manifests to a Kubernetes cluster, and follow the job: state and output of its pods until it has ended.

Talks through ``kubectl`` alone. Must not import torch.
"""

import contextlib
import subprocess
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import final

from unisono.errors import LaunchError
from unisono.launchers.engines.following import INTERVAL_S, PATIENCE, Tell, Write, ask, find_tool
from unisono.launchers.engines.kubernetes import CONTAINER, INSTANCE, KubernetesJob, manifests, render
from unisono.launchers.engines.kubernetes_state import JobState, PodState, exit_code, moment, names, news, parse_state

_LINGER_S = 10.0  # for the output of pods that still run when their job has ended
_OF_NO_USE = ("(Forbidden)", "(Unauthorized)", "doesn't have a resource type")


def submit(job: KubernetesJob) -> str:
    """Create a job's objects; return what kubectl says of each.

    Raises:
        LaunchError: There is no ``kubectl`` here, or it refuses; names its reason, and what was made before.
    """
    command = [_kubectl(), "create", "-f", "-"]
    done = subprocess.run(command, input=render(job), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        made = [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" created")]
        left = f"\nHint: made before that; to remove it: {_delete(job.namespace, made)}" if made else ""
        raise LaunchError(f"kubectl create ended with code {done.returncode}: {done.stderr.strip()}{left}")
    return done.stdout


def how_to_end(job: KubernetesJob) -> str:
    """Return the command that ends a job and removes its objects."""
    return _delete(job.namespace, names(manifests(job))[::-1])


def follow(job: KubernetesJob, *, tell: Tell, write: Write, interval_s: float = INTERVAL_S) -> int:
    """Tell a job's and its pods' changes of state and write their output until it has ended; return its exit code.

    Lines of several pods begin with the pod's index. Pods that take the place of others are followed too. Output that
    is cut off, because the cluster's server was away, say, goes on where it was.

    Raises:
        LaunchError: The cluster does not answer, or somebody has deleted the job.
        BrokenPipeError: Nobody reads the output any more.
    """
    words = [_kubectl(), *_where(job.namespace)]
    kind, name = manifests(job)[-1]["kind"], names(manifests(job))[-1]
    question = [*words, "get", f"{name.partition('/')[0]},pod", "-l", f"{INSTANCE}={job.name}", "-o", "json"]
    known: JobState | None = None
    streams: dict[str, _Stream] = {}
    lock = threading.Lock()
    until_s: float | None = None

    def write_one(line: bytes) -> None:
        with lock:
            write(line)

    try:
        while True:
            now = parse_state(_ask(question, interval_s), kind, job.name)
            if now is None:
                raise LaunchError(f"{name} is gone: somebody has deleted it. Hint: submit it again to go on.")
            for line in news(job.name, known, now):
                tell(line)
            known = now
            pods = {pod.name: pod for pod in now.pods}
            for pod in now.pods:
                if pod.has_started and pod.name not in streams:
                    label = f"[{pod.index or pod.name}] ".encode() if job.nodes > 1 else b""
                    streams[pod.name] = _Stream(words, pod.name, label, write_one, tell)
            is_written = [stream.go_on(pods.get(pod)) for pod, stream in streams.items()]
            if now.has_ended:
                until_s = until_s or time.monotonic() + _LINGER_S
                if all(is_written) or time.monotonic() > until_s:
                    return exit_code(now)
            time.sleep(interval_s)
    finally:
        for stream in streams.values():
            stream.close()


def _ask(question: Sequence[str], interval_s: float) -> str:
    done = ask(question, interval_s, lambda said: any(words in said for words in _OF_NO_USE))
    if done.returncode != 0:
        raise LaunchError(
            f"kubectl says nothing about the job (code {done.returncode}): {done.stderr.strip()}\nHint: the job itself "
            f"goes on, if it was made. Ask again: {' '.join(['kubectl', *question[1:-2]])}"
        )
    return done.stdout


def _kubectl() -> str:
    hint = (
        "install it and point it at the cluster, or send the output of --dry-run from where it is: unisono launch "
        "kubernetes --dry-run ... | kubectl create -f -"
    )
    return find_tool("kubectl", "Kubernetes'", hint)


def _where(namespace: str | None) -> list[str]:
    return [] if namespace is None else ["-n", namespace]


def _delete(namespace: str | None, objects: Sequence[str]) -> str:
    return " ".join(["kubectl", *_where(namespace), "delete", *objects])


@final
class _Stream:
    """A pod's output, read in a thread by ``kubectl logs`` (`words`), and begun again where it was cut off."""

    def __init__(self, words: Sequence[str], pod: str, label: bytes, write: Write, tell: Tell) -> None:
        self._words, self._pod, self._label, self._write, self._tell = words, pod, label, write, tell
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None
        self._said = b""
        self._last_ns = 0
        self._failures = 0
        self._will_be_whole = self._is_done = False

    def go_on(self, pod: PodState | None) -> bool:
        """Begin, or begin again where that is needed; return whether all has been written. None: the pod is gone."""
        if self._error is not None:
            raise self._error
        if self._is_done or (self._thread is not None and self._thread.is_alive()):
            return self._is_done
        if self._process is not None and self._process.wait() != 0:
            self._failures += 1
            if self._failures == PATIENCE:
                self._tell(f"no output of pod {self._pod}: {self._said.decode(errors='replace').strip()}")
        # A stream that ended before the pod was known to have ended may have been cut off.
        is_whole = self._will_be_whole and self._process is not None and self._process.returncode == 0
        if is_whole or self._failures == PATIENCE or (pod is None and self._process is not None):
            self._is_done = True
        else:
            self._begin(is_last=pod is None or pod.has_ended)
        return self._is_done

    def _begin(self, is_last: bool) -> None:
        self._will_be_whole = is_last
        since = datetime.fromtimestamp(self._last_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        resumed = [f"--since-time={since}"] if self._last_ns else []
        self._process = subprocess.Popen(
            [*self._words, "logs", "-f", "--timestamps", *resumed, "-c", CONTAINER, self._pod],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, args=(self._process,), name="unisono-logs", daemon=True)
        self._thread.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        written_ns = self._last_ns
        with process.stdout, process.stderr:
            try:
                for line in process.stdout:
                    stamp, _, text = line.rstrip(b"\n").partition(b" ")
                    try:
                        at_ns = moment(stamp.decode(errors="replace"))
                    except LaunchError:  # words of kubectl's own
                        at_ns, text = written_ns + 1, line.rstrip(b"\n")
                    if at_ns > written_ns:  # --since-time knows whole seconds only
                        self._last_ns = max(self._last_ns, at_ns)
                        self._write(self._label + text + b"\n")
                self._said = process.stderr.read()
            except OSError as error:
                self._error = error

    def close(self) -> None:
        """End it; safe to call twice."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        self._process.wait()
        if self._thread is not None:
            self._thread.join()
