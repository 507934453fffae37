"""What this machine has to compute with: cores that a process may use, and NVIDIA GPUs (no torch).

Starts no process but ``nvidia-smi``, to count GPUs. Which GPU is whose: `devices`.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from unisono.system.devices import VISIBLE_VARIABLE, choose_devices, visible_devices

_NVIDIA_SMI_TIMEOUT_S = 10.0


def usable_cores(cpu_max_file: str = "/sys/fs/cgroup/cpu.max") -> int:
    """Return how many cores this process may use: its CPU affinity, and the CPU quota of its container."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path(cpu_max_file).read_text().split()
        return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores


def count_gpus(environ: Mapping[str, str]) -> int:
    """Return the number of visible NVIDIA GPUs, 0 when torch is built without CUDA; imports no torch."""
    visible = environ.get(VISIBLE_VARIABLE)
    if visible is not None and not visible.strip(" ,"):
        return 0
    return len(visible_devices(visible, _count_all_gpus()))


def resolve_devices(asked: str | None, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs that ``--gpus`` asks for, None where it is not given."""
    if asked is None:
        return None
    return choose_devices(asked, visible_devices(environ.get(VISIBLE_VARIABLE), _count_all_gpus()))


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


def _count_all_gpus() -> int:
    return 0 if _torch_is_cpu_only() else len(re.findall(r"^GPU \d+:", ask_driver("-L"), re.MULTILINE))


def _torch_is_cpu_only() -> bool:
    if shutil.which("nvidia-smi") is None:
        return True  # of no use then, and the next lines are slow
    from importlib import metadata

    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return True
