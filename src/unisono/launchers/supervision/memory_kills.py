"""Want of memory: is there enough address space to begin, and was it the kernel that killed a worker for want of it.

In: the text of ``memory.events`` (cgroup v2), ``memory.oom_control`` (v1) and ``/proc/vmstat``. Out: numbers of
out-of-memory kills. Linux only; elsewhere nothing is counted.

Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.events: oom_kill)
"""

import re
import resource
from pathlib import Path

from unisono.errors import ConfigError

LEAST_ADDRESS_SPACE = 1 << 30
"""Bytes. With less, importing torch 2.13 for the CPU fails in many ways, each with pages of its own."""
_CGROUPS = Path("/sys/fs/cgroup")


def check_address_space(limit_bytes: int | None = None) -> None:
    """Refuse a limit under which no program could import torch."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0] if limit_bytes is None else limit_bytes
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESS_SPACE:
        raise ConfigError(
            f"expected at least {LEAST_ADDRESS_SPACE >> 10:,} KB of address space for each process, or torch cannot "
            f"be loaded, got a limit of {limit >> 10:,} KB. Hint: ulimit -v unlimited; memory itself is limited "
            "by a container or cgroup."
        )


def count_in(text: str) -> int:
    """Return the value of ``oom_kill`` in a list of names and numbers, 0 when it is missing."""
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def counter_files(cgroup: str, root: Path = _CGROUPS) -> list[Path]:
    """Return where the kernel counts, given the text of ``/proc/self/cgroup``; the host's own counter comes last."""
    files = []
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files.append(root / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(root / "memory" / path.lstrip("/") / "memory.oom_control")
    return [*files, Path("/proc/vmstat")]


def count_kills() -> int:
    """Return how many processes the kernel has killed for want of memory, as far as this process can see.

    The sum of all counters that can be read; only its growth means something.
    """
    try:
        files = counter_files(Path("/proc/self/cgroup").read_text())
    except OSError:
        return 0
    return sum(count_in(_text(file)) for file in files)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # not mounted here, or another version of cgroups
        return ""
