"""The rules that the Dockerfile keeps; hadolint looks at it in tests/cluster."""

import re
from pathlib import Path

import pytest

from unisono.launchers.engines.kubernetes import KubernetesJob, manifests

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text()


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions with their arguments, continued lines joined."""
    plain = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2]) for line in plain.splitlines() if line.strip()]


def broken_rules(text: str) -> list[str]:
    """Return the rules that a Dockerfile breaks."""
    found = []
    steps = instructions(text)
    for name, rest in steps:
        if name == "FROM" and (":" not in rest or ":latest" in rest):
            found.append("a base image without a version")
        if "pip install" in rest and ("--no-cache-dir" not in rest or not re.search(r"-c |==", rest)):
            found.append("packages kept in the cache, or of any version")
        if name in ("ADD", "MAINTAINER") or "sudo" in rest or "curl" in rest:
            found.append(f"{name}: {rest}")
        if name == "WORKDIR" and not rest.startswith("/"):
            found.append("a relative working directory")
        if name == "CMD" and not rest.startswith("["):
            found.append("a shell between the engine's signals and the program")
    users = [rest for name, rest in steps if name == "USER"]
    if not users or users[-1].startswith(("0", "root")):
        found.append("root")
    return found


def test_the_rules_are_kept():
    """Pinned, no caches, no root, no shell around the program."""
    assert broken_rules(TEXT) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("python:3.12-slim-bookworm AS", "python AS"),
        (" -c constraints.txt", ""),
        ("--no-cache-dir -c", "-c"),
        ("USER 1000:1000\n", ""),
        ("USER 1000:1000", "USER root"),
        ('CMD ["unisono", "--help"]', "CMD unisono --help"),
        ("COPY src", "ADD src"),
    ],
)
def test_a_broken_rule_would_be_noticed(old, new):
    """The control."""
    assert old in TEXT
    assert broken_rules(TEXT.replace(old, new, 1))


def test_what_is_copied_is_there_and_not_ignored():
    """Sources of COPY exist, and .dockerignore lets them through."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for name, rest in instructions(TEXT)
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


def test_the_user_is_the_one_that_the_manifests_ask_for():
    """Kubernetes refuses a pod whose image would run as root."""
    job = manifests(KubernetesJob(name="it", image="it", target=("it.py",)))[-1]
    user = job["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    assert ("USER", f"{user}:{user}") in instructions(TEXT)
