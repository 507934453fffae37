"""What of a machine is well, and what is said where it is not."""

import os
import subprocess
import sys

import pytest

from unisono.doctor import machine
from unisono.doctor.machine import (
    check_cores,
    check_host_name,
    check_interfaces,
    check_machine,
    check_memory,
    check_open_files,
    check_port,
    check_shared_memory,
    check_threads,
    judge_clock,
)


def test_every_check_of_this_machine_has_a_verdict():
    """All run here, under names of their own; what is not well says what to do."""
    found = check_machine(os.environ)
    assert len({finding.name for finding in found}) == len(found) == 9
    assert all(finding.detail and (finding.hint or finding.status == "ok") for finding in found)


def test_no_torch_is_loaded():
    """The checks answer without it."""
    code = "import os, sys; from unisono.doctor.machine import check_machine; check_machine(os.environ)"
    code += "; import unisono.doctor.self_test, unisono.doctor.script; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_load_of_others_is_said():
    """Twice the cores: timings mean nothing."""
    assert check_cores(load=0.0).status == "ok"
    assert check_cores(load=2.0 * (os.cpu_count() or 1)).status == "warn"


@pytest.mark.parametrize(
    ("text", "status"), [("", "ok"), ("1", "ok"), ("4096", "warn"), ("0", "fail"), ("many", "fail"), ("-2", "fail")]
)
def test_threads(text, status):
    """Unset and 1 are well; more than there are cores, or no number, is not."""
    assert check_threads({"OMP_NUM_THREADS": text} if text else {}).status == status


@pytest.mark.parametrize(
    ("free_kb", "limit", "status", "word"),
    [
        (20 << 20, None, "ok", "20.0 of 24.0"),
        (1 << 20, None, "warn", "1.0 of 24.0"),
        (20 << 20, "max", "ok", "20.0 of 24.0"),
        (20 << 20, str(1 << 30), "warn", "0.5 of 1.0 GiB available, limited"),
    ],
)
def test_memory(tmp_path, free_kb, limit, status, word):
    """The smaller of the machine's and the container's counts."""
    (tmp_path / "meminfo").write_text(f"MemTotal: {24 << 20} kB\nMemFree: 1 kB\nMemAvailable: {free_kb} kB\n")
    if limit:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text(str(1 << 29))
    found = check_memory(str(tmp_path / "meminfo"), str(tmp_path))
    assert (found.status, word in found.detail) == (status, True)


def test_shared_memory(tmp_path, monkeypatch):
    """Missing and small are warnings: there is a slower way."""
    assert check_shared_memory(str(tmp_path / "none")).status == "warn"
    for free, status in ((64 << 20, "warn"), (1 << 30, "ok")):
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _, free=free: type("Usage", (), {"free": free}))
        assert check_shared_memory(str(tmp_path)).status == status


def test_open_files():
    """256 are too few, and the hint stays under the hard limit."""
    found = check_open_files((256, 4096))
    assert (found.status, "ulimit -n 4096" in found.hint) == ("warn", True)
    assert check_open_files((4096, 4096)).status == check_open_files((-1, -1)).status == "ok"


def test_interfaces(tmp_path):
    """Several that are up need a choice, and that of the default route is proposed."""
    routes = tmp_path / "route"
    routes.write_text("Iface Destination Gateway\nens4 00000000 0102A8C0\nens3 0002A8C0 00000000\n")
    for name, state in (("lo", "unknown"), ("ens3", "up"), ("ens5", "down")):
        (tmp_path / "net" / name).mkdir(parents=True)
        (tmp_path / "net" / name / "operstate").write_text(f"{state}\n")
    assert check_interfaces(str(tmp_path / "net"), str(routes)).status == "ok"
    (tmp_path / "net" / "ens4").mkdir()
    (tmp_path / "net" / "ens4" / "operstate").write_text("up\n")
    found = check_interfaces(str(tmp_path / "net"), str(routes))
    assert (found.status, "NCCL_SOCKET_IFNAME=ens4" in found.hint) == ("warn", True)


def test_host_name():
    """A name for loopback is a warning; an address is well."""
    assert check_host_name("localhost").status == "warn"
    assert check_host_name("10.0.0.1").status == "ok"


def test_port():
    """Loopback answers; an address that is not this machine's (RFC 5737) does not."""
    assert check_port().status == "ok"
    assert check_port("192.0.2.1").status == "fail"


@pytest.mark.parametrize(
    ("steady", "apart", "now", "status"),
    [
        ([1.0, 1.0, 2.0], 0.01, 2e9, "ok"),
        ([1.0, 0.9, 2.0], 0.0, 2e9, "fail"),
        ([1.0, 2.0], 3600.0, 2e9, "warn"),
        ([1.0, 2.0], -1.0, 2e9, "warn"),
        ([1.0, 2.0], 0.0, 1e6, "warn"),
    ],
)
def test_clock(steady, apart, now, status):
    """Backwards fails; a jump and a date before the installation are warnings."""
    assert judge_clock(steady, apart, now, installed=1.9e9).status == status
