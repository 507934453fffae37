"""What the machine has to compute with."""

import os

from unisono.system.machine import count_gpus, usable_cores


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
    assert count_gpus(os.environ) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert count_gpus(os.environ) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert count_gpus(os.environ) == 0
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cpu")
    assert count_gpus(os.environ) == 0
