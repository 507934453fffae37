"""What this machine has to compute with: cores that a process may use, and NVIDIA GPUs (no torch).

Starts no process but ``nvidia-smi``, to count GPUs. Which GPU is whose: `devices`.
"""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono.system.devices import VISIBLE_VARIABLE, Gpu, choose_devices, visible_devices

_NVIDIA_SMI_TIMEOUT_S = 10.0


def usable_cores(cpu_max_file: str = "/sys/fs/cgroup/cpu.max") -> int:
    """Return how many cores this process may use: its CPU affinity, and the CPU quota of its container."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path(cpu_max_file).read_text().split()
        return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores


def find_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the visible NVIDIA GPUs by name, none where torch is built without CUDA; imports no torch."""
    visible = environ.get(VISIBLE_VARIABLE)
    if visible is not None and not visible.strip(" ,"):
        return ()
    return visible_devices(visible, len(_own_gpus()))


def count_gpus(environ: Mapping[str, str]) -> int:
    """Return how many `find_gpus` finds."""
    return len(find_gpus(environ))


def resolve_devices(asked: str | None, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs that ``--gpus`` asks for, None where it is not given."""
    if asked is None:
        return None
    known = _own_gpus()
    return choose_devices(asked, visible_devices(environ.get(VISIBLE_VARIABLE), len(known)), known)


def ask_driver(*question: str) -> str:
    """Return what ``nvidia-smi`` answers; empty without a driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        return subprocess.run(
            [tool, *question], capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def list_gpus(library: str = "libnvidia-ml.so.1", listed: Path = Path("/proc/driver/nvidia/gpus")) -> list[Gpu]:
    """Return the machine's GPUs in the driver's order, which is that of their places on the bus.

    Asked are nvidia-smi, then the library that it uses, then the kernel: containers may have only one of them.
    """
    found: list[Gpu] = []
    for line in ask_driver("-L").splitlines():
        unit = re.search(r"\(UUID:\s*([^)\s]+)\)", line)
        if re.match(r"GPU \d+:", line):
            found.append(Gpu(unit[1] if unit else ""))
        elif unit and found and unit[1].startswith("MIG-"):
            found[-1] = Gpu(found[-1].name, (*found[-1].parts, unit[1]))
    if found:
        return found
    try:
        return [Gpu(name) for name in _ask_library(ctypes.CDLL(library))]
    except (OSError, AttributeError):  # there is none, or another one
        pass
    names = [re.search(r"GPU UUID:\s*(\S+)", path.read_text()) for path in sorted(listed.glob("*/information"))]
    return [Gpu(name[1] if name else "") for name in names]


def _ask_library(driver: Any) -> list[str]:
    """Return the names of the GPUs that NVIDIA's management library knows."""
    if driver.nvmlInit_v2():
        return []
    try:
        count, names = ctypes.c_uint(), []
        driver.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            device, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            is_known = not driver.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
            is_known = is_known and not driver.nvmlDeviceGetUUID(device, name, len(name))
            names.append(name.value.decode() if is_known else "")
        return names
    finally:
        driver.nvmlShutdown()


def _own_gpus() -> list[Gpu]:
    """Return the GPUs that torch can use."""
    return [] if _torch_is_cpu_only() else list_gpus()


def _torch_is_cpu_only() -> bool:
    from importlib import metadata

    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return True
