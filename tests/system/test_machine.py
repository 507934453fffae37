"""What the machine has to compute with."""

import os
import shutil
import subprocess

import pytest

from unisono.errors import ConfigError
from unisono.system.devices import Gpu
from unisono.system.machine import count_gpus, list_gpus, resolve_devices, usable_cores


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


_NVML = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) { strcpy(s, d == (void *)1 ? "GPU-a" : "GPU-b"); return 0; }
"""


def test_gpus_are_found_without_nvidia_smi(tmp_path, monkeypatch):
    """A container may have the driver's library alone, or only what the kernel tells; or nothing."""
    monkeypatch.setenv("PATH", str(tmp_path / "no-tools"))
    for place, name in (("0000:17:00.0", "GPU-c"), ("0000:03:00.0", "GPU-d")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "information").write_text(f"Model: A\nGPU UUID: \t {name}\n")
    assert list_gpus("libabsent.so", tmp_path) == [Gpu("GPU-d"), Gpu("GPU-c")]
    assert list_gpus("libabsent.so", tmp_path / "absent") == []
    assert list_gpus("libc.so.6", tmp_path / "absent") == [], "a library of something else"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_gpus_are_told_by_the_drivers_library(tmp_path, monkeypatch):
    """The library that nvidia-smi uses is asked where that is not there."""
    (tmp_path / "nvml.c").write_text(_NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    monkeypatch.setenv("PATH", str(tmp_path / "no-tools"))
    assert list_gpus(str(library), tmp_path / "absent") == [Gpu("GPU-a"), Gpu("GPU-b")]


def test_gpus_are_asked_for_by_name(tmp_path, monkeypatch):
    """By the beginning of a name, and the parts of a GPU by theirs, whatever CUDA_VISIBLE_DEVICES calls them."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho 'GPU 0: A (UUID: GPU-3f1a-7)'\necho 'GPU 1: A (UUID: GPU-5b)'\n"
        "echo '  MIG 1g.10gb     Device  0: (UUID: MIG-aa)'\necho '  MIG 1g.10gb     Device  1: (UUID: MIG-bb)'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0")
    assert list_gpus() == [Gpu("GPU-3f1a-7"), Gpu("GPU-5b", ("MIG-aa", "MIG-bb"))]
    assert resolve_devices("GPU-3f1a", {}) == ("0",)
    assert resolve_devices("GPU-5b,0", {}) == ("1", "0")
    assert resolve_devices("MIG-aa,MIG-bb", {}) == ("MIG-aa", "MIG-bb")
    assert resolve_devices("GPU-3f1a", {"CUDA_VISIBLE_DEVICES": "GPU-3f1a-7"}) == ("GPU-3f1a-7",)
    with pytest.raises(ConfigError, match="'GPU-3f1a' is not there"):
        resolve_devices("GPU-3f1a", {"CUDA_VISIBLE_DEVICES": "1"})
