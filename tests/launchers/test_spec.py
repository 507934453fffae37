"""The launch as plain values."""

import os
import subprocess
import sys

import pytest

from unisono.errors import ConfigError
from unisono.launchers.spec import (
    LaunchSpec,
    ModuleTarget,
    ScriptTarget,
    check_target,
    count_gpus,
    resolve_workers,
    usable_cores,
)

SCRIPT = ScriptTarget(path="train.py")


@pytest.mark.parametrize("settings", [{"workers": 0}, {"threads": 0}, {"output": "loud"}, {"grace_s": -1.0}], ids=str)
def test_wrong_settings(settings):
    """A wrong setting is refused when the spec is built."""
    with pytest.raises(ConfigError, match="expected"):
        LaunchSpec(target=SCRIPT, **settings)


def test_missing_targets(tmp_path):
    """A missing script, a folder and an unknown module are refused before any process starts."""
    for target in (ScriptTarget(path=str(tmp_path / "no.py")), ScriptTarget(path=str(tmp_path))):
        with pytest.raises(ConfigError, match=r"expected a Python file .* got .* Hint"):
            check_target(target)
    with pytest.raises(ConfigError, match="no module named 'no_such_module'"):
        check_target(ModuleTarget(name="no_such_module.sub"))
    check_target(ModuleTarget(name="json.tool"))


def test_resolve_workers():
    """Numbers pass, auto is capped by the replicas, and more workers than replicas are refused."""
    assert resolve_workers("3") == 3
    assert resolve_workers(2, 2) == 2
    assert resolve_workers("auto", 1) == 1
    assert 1 <= resolve_workers("auto") <= 4096
    for workers, replicas in (("many", None), (0, None), (4, 2), ("auto", 0)):
        with pytest.raises(ConfigError):
            resolve_workers(workers, replicas)


def test_cores_respect_a_container(tmp_path):
    """A container's CPU quota counts, rounded down but never to zero; nonsense is ignored."""
    everything = len(os.sched_getaffinity(0))
    quota = tmp_path / "cpu.max"
    for text, cores in (
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("max 100000", everything),
        ("?", everything),
    ):
        quota.write_text(text)
        assert usable_cores(str(quota)) == cores
    assert usable_cores(str(tmp_path / "absent")) == everything


def test_gpus_are_counted(tmp_path, monkeypatch):
    """GPUs are counted from nvidia-smi, at most the visible ones; none if torch cannot use any."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: GPU-1)'\necho 'GPU 1: A (UUID: GPU-2)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0")
    assert count_gpus() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert count_gpus() == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert count_gpus() == 0
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cpu")
    assert count_gpus() == 0


def test_launcher_is_light():
    """The launcher and its command line import neither torch nor numpy."""
    code = (
        "import sys, unisono.cli.run, unisono.launchers.api; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
