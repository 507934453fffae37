"""As much of a Kubernetes cluster as kubectl and an Indexed Job need: an API server whose pods are processes here.

Not Kubernetes: no images, no network, no scheduler. What it answers has the form of the published API, for the real
``kubectl`` to read; what its pods run is the manifest's own command with the manifest's own variables.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

INDEX = "batch.kubernetes.io/job-completion-index"
RESOURCES = {
    "v1": [("services", "Service"), ("pods", "Pod")],
    "batch/v1": [("jobs", "Job")],
    "networking.k8s.io/v1": [("networkpolicies", "NetworkPolicy")],
}
# What kubectl before 1.27 checks fields by: OpenAPI 2 as a protocol buffer, with version and title, and no path.
EMPTY_OPENAPI = b"\x0a\x032.0" + b"\x12\x0b" + b"\x0a\x06little" + b"\x12\x011" + b"\x42\x00"
KINDS = {plural: (version, kind) for version, found in RESOURCES.items() for plural, kind in found}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Pod:
    """One process, its output with times as a container runtime notes them."""

    def __init__(self, name: str, index: int, job: dict, environment: dict[str, str]) -> None:
        self.name, self.index, self.made = name, index, now()
        self.labels = {**job["spec"]["template"]["metadata"]["labels"], INDEX: str(index)}
        (container,) = job["spec"]["template"]["spec"]["containers"]
        told = {entry["name"]: entry.get("value", str(index)) for entry in container["env"]}
        told["PET_MASTER_ADDR"] = "127.0.0.1"  # what the first pod's name would lead to
        self.lines: list[tuple[str, bytes]] = []
        self._mark = uuid.uuid4().hex
        self.finished = ""
        self.process = subprocess.Popen(
            [sys.executable, *container["command"][1:], *container["args"]],
            env={**environment, **told, "LITTLE_POD": self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with self.process.stdout:
            for line in self.process.stdout:
                fraction = f"{time.time_ns() % 1_000_000_000:09d}"
                self.lines.append((datetime.now(UTC).strftime(f"%Y-%m-%dT%H:%M:%S.{fraction}Z"), line))
        self.process.wait()
        self.finished = now()

    @property
    def code(self) -> int | None:
        """As Kubernetes counts: 128 + n for signal n; None while it runs, or is still read."""
        if not self.finished:
            return None
        return self.process.returncode if self.process.returncode >= 0 else 128 - self.process.returncode

    def packed(self) -> dict:
        """Return it as the API does."""
        code = self.code  # asked once: it may end meanwhile
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": self.finished}
        state = {"running": {"startedAt": self.made}} if code is None else {"terminated": ended}
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        metadata = {"name": self.name, "namespace": "default", "labels": self.labels, "creationTimestamp": self.made}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"nodeName": "here", "containers": [{"name": "node", "image": "it"}]},
            "status": {"phase": phase, "containerStatuses": [{"name": "node", "state": state}]},
        }

    def kill(self) -> None:
        """End all its processes, as a container ends: torchrun's ranks would outlive it."""
        mark = f"LITTLE_POD={self._mark}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)

    def close(self) -> None:
        while self._reader.is_alive():
            self.kill()
            self._reader.join(0.1)


class LittleCluster:
    """The server, its objects, and a controller for Indexed Jobs.

    Args:
        folder: For kubectl's settings.
        environment: Of all pods.

    Attributes:
        kubeconfig: File for ``KUBECONFIG``.
        cuts: So many streams of output are cut off after their third line.
        outages: So many requests are answered with 503.
        seen: Method and path of all requests.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.objects: dict[str, dict[str, dict]] = {plural: {} for plural in KINDS}
        self.pods: dict[str, Pod] = {}
        self.cuts = self.outages = 0
        self.seen: list[str] = []
        self._environment, self._lock, self._closed = environment, threading.RLock(), threading.Event()
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                cluster.answer(self, b"")

            def do_POST(self) -> None:
                cluster.answer(self, self.rfile.read(int(self.headers["Content-Length"])))

            def do_DELETE(self) -> None:
                cluster.answer(self, self.rfile.read(int(self.headers.get("Content-Length") or 0)))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.kubeconfig = folder / "kubeconfig"
        where = {"cluster": {"server": f"http://127.0.0.1:{self._server.server_address[1]}"}, "name": "little"}
        context = {"context": {"cluster": "little", "user": "me"}, "name": "little"}
        self.kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "clusters": [where], "contexts": [context],
            "current-context": "little", "users": [{"name": "me", "user": {}}],
        }))  # fmt: skip

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        """Answer one request."""
        url = urlparse(request.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.seen.append(f"{request.command} {request.path}")
        parts = url.path.strip("/").split("/")
        if self.outages:
            self.outages -= 1
            self._refuse(request, 503, "ServiceUnavailable", "the server is currently unable to handle the request")
        elif "namespaces" not in parts:
            self._discover(request, parts)
        else:
            _, plural, *rest = parts[parts.index("namespaces") + 1 :]
            if rest[1:] == ["log"]:
                self._log(request, rest[0], query)
            else:
                with self._lock:
                    self._control()
                    self._serve(request, plural, rest[0] if rest else "", query, body)

    def _serve(
        self, request: BaseHTTPRequestHandler, plural: str, name: str, query: dict[str, str], body: bytes
    ) -> None:
        found = {key: pod.packed() for key, pod in self.pods.items()} if plural == "pods" else self.objects[plural]
        if request.command == "POST":
            self._create(request, plural, json.loads(body))
        elif name and name not in found:
            self._refuse(request, 404, "NotFound", f'{plural} "{name}" not found')
        elif request.command == "DELETE":
            self._delete(request, plural, name)
        elif name:
            self._send(request, 200, found[name])
        else:
            wanted = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if part)
            fits = [one for one in found.values() if wanted.items() <= one["metadata"].get("labels", {}).items()]
            version, kind = KINDS[plural]
            self._send(request, 200, {"apiVersion": version, "kind": f"{kind}List", "metadata": {}, "items": fits})

    def _create(self, request: BaseHTTPRequestHandler, plural: str, made: dict) -> None:
        name = made["metadata"]["name"]
        if name in self.objects[plural]:
            group = KINDS[plural][0].rpartition("/")[0]
            what = f"{plural}.{group}" if group else plural
            self._refuse(request, 409, "AlreadyExists", f'{what} "{name}" already exists')
            return
        made["metadata"]["creationTimestamp"] = now()
        self.objects[plural][name] = made
        self._send(request, 201, made)

    def _delete(self, request: BaseHTTPRequestHandler, plural: str, name: str) -> None:
        gone = self.objects[plural].pop(name)
        if plural == "jobs":
            for pod in list(self.pods.values()):
                pod.close()
                del self.pods[pod.name]
        self._send(request, 200, gone)

    def _control(self) -> None:
        """Make the pods of Jobs, replace those that have failed, and say how it ended."""
        for name, job in self.objects["jobs"].items():
            spec, own = job["spec"], [pod for pod in self.pods.values() if pod.name.startswith(f"{name}-")]
            if "status" in job:
                continue
            failures = [pod for pod in own if pod.code]
            if len(failures) > spec["backoffLimit"]:
                message = "Job has reached the specified backoff limit"
                job["status"] = _condition("Failed", "BackoffLimitExceeded", message)
                continue
            missing = set(range(spec["completions"])) - {pod.index for pod in own if not pod.code}
            for index in sorted(missing):
                made = f"{name}-{index}-{len(self.pods):05d}"
                self.pods[made] = Pod(made, index, job, self._environment)
            if not missing and all(pod.code == 0 for pod in own if pod not in failures):
                job["status"] = _condition("Complete", "CompletionsReached", "Reached the expected number of pods")

    def _log(self, request: BaseHTTPRequestHandler, name: str, query: dict[str, str]) -> None:
        pod = self.pods[name]
        assert query["container"] == "node"
        assert query["timestamps"] == query["follow"] == "true"
        is_cut = self.cuts > 0
        self.cuts -= is_cut
        request.send_response(200)
        request.send_header("Content-Type", "text/plain")
        request.send_header("Connection", "close")
        request.end_headers()
        position = 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while not self._closed.is_set():
                is_over = pod.code is not None
                while position < len(pod.lines):
                    stamp, line = pod.lines[position]
                    position += 1
                    if stamp[:19] >= query.get("sinceTime", "")[:19]:  # whole seconds, as the API has them
                        request.wfile.write(stamp.encode() + b" " + line)
                    if is_cut and position == 3:
                        break
                if is_over or (is_cut and position == 3):
                    break
                time.sleep(0.02)
        request.close_connection = True

    def _discover(self, request: BaseHTTPRequestHandler, parts: list[str]) -> None:
        groups = [
            {
                "name": version.partition("/")[0],
                "versions": [{"groupVersion": version, "version": "v1"}],
                "preferredVersion": {"groupVersion": version, "version": "v1"},
            }
            for version in RESOURCES
            if "/" in version
        ]
        version = "/".join(parts[1:])
        if parts == ["openapi", "v2"]:
            self._send_bytes(request, 200, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf", EMPTY_OPENAPI)
        elif parts == ["openapi", "v3"]:
            urls = {("apis/" if "/" in each else "api/") + each for each in RESOURCES}
            self._send(request, 200, {"paths": {url: {"serverRelativeURL": f"/openapi/v3/{url}"} for url in urls}})
        elif parts[:2] == ["openapi", "v3"]:
            self._send(request, 200, _openapi("/".join(parts[3:])))
        elif parts == ["api"]:
            self._send(request, 200, {"kind": "APIVersions", "versions": ["v1"]})
        elif parts == ["apis"]:
            self._send(request, 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        elif version in RESOURCES:
            verbs = ["create", "delete", "get", "list"]
            found = [
                {"name": plural, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": verbs}
                for plural, kind in RESOURCES[version]
            ]
            made = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}
            self._send(request, 200, made)
        else:
            self._refuse(request, 404, "NotFound", "there is no such thing here")

    def _send(self, request: BaseHTTPRequestHandler, code: int, value: dict) -> None:
        self._send_bytes(request, code, "application/json", json.dumps(value).encode())

    def _send_bytes(self, request: BaseHTTPRequestHandler, code: int, kind: str, content: bytes) -> None:
        request.send_response(code)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _refuse(self, request: BaseHTTPRequestHandler, code: int, reason: str, message: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
        self._send(request, code, {**status, "code": code})

    def close(self) -> None:
        """End the server and all pods."""
        self._closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for pod in self.pods.values():
            pod.close()


def _openapi(version: str) -> dict:
    """Return what kubectl looks for before it lets the server check the fields of what it sends."""
    group, _, last = version.rpartition("/")
    checks = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    paths = {}
    for plural, kind in RESOURCES[version]:
        what = {"group": group, "version": last, "kind": kind}
        act = {"parameters": checks, "x-kubernetes-group-version-kind": what, "responses": {}}
        paths[f"/{'apis' if group else 'api'}/{version}/namespaces/{{namespace}}/{plural}/{{name}}"] = {"patch": act}
    return {"openapi": "3.0.0", "info": {"title": "little", "version": "1"}, "paths": paths}


def _condition(kind: str, reason: str, message: str) -> dict:
    return {"conditions": [{"type": kind, "status": "True", "reason": reason, "message": message}]}


@contextlib.contextmanager
def little_cluster(folder: Path, environment: dict[str, str]) -> Iterator[LittleCluster]:
    """Start one, and end it whatever happens."""
    made = LittleCluster(folder, environment)
    try:
        yield made
    finally:
        made.close()
