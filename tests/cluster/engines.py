"""What the tests of engines share: installing, starting and ending them, and what one process computes alone."""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
DIGITS, PLAIN_DDP = str(HERE / "programs" / "digits.py"), str(HERE / "programs" / "plain_ddp.py")
UNISONO = [sys.executable, "-m", "unisono"]
# In one piece: print writes the end of a line apart, and mpirun mixes the pieces of its ranks.
SHOW_WORLD = (
    "import dataclasses, json, os, unisono; "
    "os.write(1, (json.dumps(dataclasses.asdict(unisono.World.current())) + os.linesep).encode())"
)
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "SLURM_CONF")}


def install(script: str, *arguments: str) -> str:
    """Run ``SCRIPT install`` and return its last line; skip the test where that cannot be."""
    if script not in ("ray.sh", "kubectl.sh") and os.geteuid() != 0:
        pytest.skip(f"installing and starting engines needs root ({script})")
    done = subprocess.run(
        ["bash", str(HERE / script), "install", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"{script} could not install: {(done.stderr or done.stdout).strip()[-300:]}")
    return (done.stdout.strip().splitlines() or [""])[-1]


def environment(name: str, *packages: str) -> Path:
    """Return the folder of programs of a virtual environment with these packages, kept in ``build``; skip without."""
    folder = Path(f"build/{name}-venv").absolute()
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        python = str(folder / "bin" / "python")
        done = call(python, "-m", "pip", "install", "--disable-pip-version-check", "-q", *packages)
        if done.returncode != 0:
            pytest.skip(f"{' and '.join(packages)} could not be installed: {done.stderr.strip()[-300:]}")
        (folder / "done").touch()
    return folder / "bin"


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Start a Slurm of one node with four slots; yield the variables with which it is found."""
    script = ["bash", str(HERE / "slurm.sh")]
    try:
        # Not captured: the daemons would keep the pipe open.
        with (folder / "start.log").open("w") as log:
            started = subprocess.run([*script, "start", str(folder)], stdout=log, stderr=log, check=False)
        assert started.returncode == 0, (folder / "start.log").read_text()
        yield {**ENVIRONMENT, "SLURM_CONF": str(folder / "slurm.conf")}
    finally:
        subprocess.run([*script, "stop", str(folder)], check=True)


def call(
    *command: str, env: dict[str, str] | None = None, cwd: Path | None = None, timeout_s: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it has written."""
    return subprocess.run(
        command, env=env or ENVIRONMENT, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def fingerprint_in(text: str) -> str:
    """Return the fingerprint that a leader has printed, once."""
    found = re.findall(r"fingerprint ([0-9a-f]{64})", text)
    assert len(found) == 1, text
    return str(found[0])


def weights_in(text: str) -> str:
    """Return the hash that the plain script has printed, once."""
    found = re.findall(r"weights ([0-9a-f]{64})", text)
    assert len(found) == 1, text
    return str(found[0])


def worlds_in(text: str) -> list[dict[str, Any]]:
    """Return what ranks have printed with `SHOW_WORLD`, in rank order."""
    return sorted((json.loads(line) for line in text.splitlines()), key=lambda world: world["rank"])


@functools.cache
def alone(*arguments: str) -> str:
    """Return the fingerprint of the digits in a single process without any launcher."""
    done = call(sys.executable, DIGITS, *arguments)
    assert done.returncode == 0, done.stderr
    return fingerprint_in(done.stdout)
