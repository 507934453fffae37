"""What of this machine a run will need: cores, memory, shared memory, limits, network, clock.

Each check takes the files and values it reads as arguments, and returns a `Finding`. Nothing is changed; no torch.
"""

import itertools
import os
import resource
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from unisono.doctor.finding import Finding, fail, ok, warn
from unisono.system.machine import ask_driver, usable_cores

_MB = 1 << 20
_SHM_BYTES = 256 * _MB
_MEMORY_BYTES = 2048 * _MB
_OPEN_FILES = 1024
_LOOPBACK = "127.0.0.1"
_WAIT_S = 2.0


def check_cores(load: float | None = None) -> Finding:
    """Return the cores that this process may use, and whether others use them now."""
    cores, present = usable_cores(), os.cpu_count() or 1
    load = os.getloadavg()[0] if load is None else load
    told = f"{cores} of {present} usable, load {load:.1f}"
    if load > 1.5 * cores:
        return warn("cores", told, "other work is running: do not trust timings taken now.")
    return ok("cores", told)


def check_threads(environ: Mapping[str, str]) -> Finding:
    """Return the threads that each process will compute with; they decide bits."""
    text = environ.get("OMP_NUM_THREADS", "")
    cores = usable_cores()
    if text and not (text.isdigit() and int(text) > 0):
        hint = "unset OMP_NUM_THREADS, or set a whole number above 0."
        return fail("threads", f"OMP_NUM_THREADS is {text!r}, not a number", hint)
    if text and int(text) > cores:
        hint = f"processes x threads should not be more than {cores}."
        return warn("threads", f"OMP_NUM_THREADS={text} on {cores} usable cores", hint)
    return ok("threads", f"{text or 1} per process ({'OMP_NUM_THREADS' if text else 'default'})")


def check_memory(meminfo: str = "/proc/meminfo", cgroup: str = "/sys/fs/cgroup") -> Finding:
    """Return the memory that is free, and a container's limit."""
    fields = dict(line.split(":", 1) for line in Path(meminfo).read_text().splitlines())
    total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    told = ""
    limit = _number_in(Path(cgroup, "memory.max"))
    used = _number_in(Path(cgroup, "memory.current"))
    if limit is not None and limit < total:
        total, free = limit, min(free, max(0, limit - (used or 0)))
        told = ", limited by the container"
    told = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB available{told}"
    if free < _MEMORY_BYTES:
        hint = "each process takes about 0.4 GiB for torch alone: start fewer, or end other programs."
        return warn("memory", told, hint)
    return ok("memory", told)


def check_shared_memory(directory: str = "/dev/shm") -> Finding:
    """Return the room for shared memory, through which the ranks of one host talk."""
    slow = "ranks of this host will talk through sockets, with the same bits but more slowly"
    if not os.access(directory, os.W_OK):
        hint = "mount it: mount -t tmpfs tmpfs /dev/shm; in a container --ipc=host or --shm-size=1g."
        return warn("shared memory", f"{directory} is missing or not writable: {slow}", hint)
    free = shutil.disk_usage(directory).free
    told = f"{free / _MB:.0f} MB free in {directory}"
    if free < _SHM_BYTES:
        hint = "containers give 64 MB: start them with --shm-size=1g; remove what dead programs have left there."
        return warn("shared memory", told, hint)
    return ok("shared memory", told)


def check_open_files(limits: tuple[int, int] | None = None) -> Finding:
    """Return how many files and sockets a process may have open."""
    soft, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    count, most = ("unlimited" if value == resource.RLIM_INFINITY else str(value) for value in (soft, hard))
    if soft != resource.RLIM_INFINITY and soft < _OPEN_FILES:
        hint = f"loader processes and many ranks need more: ulimit -n {min(hard, 65536) if hard > 0 else 65536}."
        return warn("open files", f"{count} (at most {most})", hint)
    return ok("open files", f"{count} (at most {most})")


def check_interfaces(net: str = "/sys/class/net", routes: str = "/proc/net/route") -> Finding:
    """Return the network interfaces that are up, and which the default route leaves by."""
    states = {
        path.name: (path / "operstate").read_text().strip()
        for path in sorted(Path(net).glob("*"))
        if (path / "operstate").exists()
    }
    # A loopback interface that is up has no carrier to speak of: "unknown".
    up = [name for name, state in states.items() if state in ("up", "unknown") and name != "lo"]
    lines = Path(routes).read_text().splitlines()[1:] if Path(routes).exists() else []
    default = next((fields[0] for fields in map(str.split, lines) if fields[1:2] == ["00000000"]), None)
    told = f"up: {', '.join(up) or 'only loopback'}; default route: {default or 'none'}"
    if len(up) > 1:
        chosen = default if default in up else up[0]
        names = f"GLOO_SOCKET_IFNAME={chosen} NCCL_SOCKET_IFNAME={chosen}"
        return warn("interfaces", told, f"for several hosts say which one reaches the others: {names}.")
    return ok("interfaces", told)


def check_host_name(host: str | None = None) -> Finding:
    """Return what this host's name stands for: gloo listens there unless an interface is named."""
    host = host or socket.gethostname()
    hint = (
        "one host is not touched by it. For several: enter the host's own address in /etc/hosts, or name the interface."
    )
    try:
        address = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        detail = f"{host!r} has no address ({error.strerror or error})"
        return warn("host name", detail, hint)
    if str(address).startswith("127."):
        detail = f"{host} is {address}, where other hosts do not reach it"
        return warn("host name", detail, hint)
    return ok("host name", f"{host} is {address}")


def check_port(address: str = _LOOPBACK) -> Finding:
    """Take a free port, connect to it, and pass a few bytes."""
    try:
        with socket.create_server((address, 0)) as server:
            server.settimeout(_WAIT_S)
            port = server.getsockname()[1]
            with socket.create_connection((address, port), timeout=_WAIT_S) as near:
                far, _ = server.accept()
                with far:
                    far.settimeout(_WAIT_S)
                    near.sendall(b"unisono")
                    came = far.recv(7, socket.MSG_WAITALL)
    except OSError as error:
        hint = "bring the loopback interface up (ip link set lo up); look for a firewall that drops local packets."
        return fail("port", f"no connection over {address}: {error.strerror or error}", hint)
    if came != b"unisono":
        return fail("port", f"other bytes came over {address}: {came!r}", "see `ss -ltnp`.")
    return ok("port", f"{address}:{port} was free and answers")


def check_clock(wait_s: float = 0.05) -> Finding:
    """Compare the steady clock with the one on the wall, over `wait_s` seconds."""
    steady, wall = [time.monotonic()], time.time()
    while steady[-1] - steady[0] < wait_s:
        steady.append(time.monotonic())
    apart = (time.time() - wall) - (steady[-1] - steady[0])
    return judge_clock(steady, apart, time.time(), Path(__file__).stat().st_mtime)


def judge_clock(steady: list[float], apart_s: float, now: float, installed: float) -> Finding:
    """Return the verdict on the clocks.

    Args:
        steady: Readings of the monotonic clock, in seconds.
        apart_s: By how much the clock on the wall went further meanwhile.
        now: The wall clock, seconds since 1970.
        installed: When this package was written to disk, in the same seconds.
    """
    hint = "set the clock and keep it by NTP or chrony: times in logs and certificates rest on it."
    if any(later < earlier for earlier, later in itertools.pairwise(steady)):
        wrong = "the monotonic clock went back: time-outs cannot be trusted"
        return fail("clock", wrong, "this is a fault of the (virtual) machine.")
    if abs(apart_s) > 0.5:
        return warn("clock", f"the clock on the wall jumped by {apart_s:.1f} s", hint)
    if now < installed - 86400:
        return warn("clock", "the date is before that of this installation", hint)
    date = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    return ok("clock", f"steady, {date}")


def list_gpus() -> list[str]:
    """Return the NVIDIA GPUs that the driver shows, with memory; empty without a driver."""
    listed = ask_driver("--query-gpu=name,memory.total", "--format=csv,noheader")
    return [line.strip() for line in listed.splitlines() if line.strip()]


def check_machine(environ: Mapping[str, str]) -> list[Finding]:
    """Return all checks of this file."""
    return [
        check_cores(), check_threads(environ), check_memory(), check_shared_memory(), check_open_files(),
        check_interfaces(), check_host_name(), check_port(), check_clock(),
    ]  # fmt: skip


def _number_in(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such limit, or "max"
        return None
