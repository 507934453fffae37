"""Counters of out-of-memory kills, from texts as the kernel writes them."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from unisono.errors import ConfigError
from unisono.launchers.supervision.failure import describe_kill
from unisono.launchers.supervision.memory_kills import (
    LEAST_ADDRESS_SPACE,
    check_address_space,
    count_in,
    count_kills,
    counter_files,
)


def test_the_counter_is_found_in_all_three_formats():
    """Cgroup v2, cgroup v1 and vmstat name it alike; a longer name is another counter."""
    assert count_in("low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 9\n") == 2
    assert count_in("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n") == 5
    assert count_in("pgfault 12\noom_kill 7\n") == 7
    assert count_in("oom_kill_disable 1\n") == count_in("") == 0


def test_where_the_kernel_counts():
    """The group's own file is looked at in either version, and the host's counter always."""
    v2 = counter_files("0::/user.slice/job\n", Path("/cg"))
    assert v2 == [Path("/cg/user.slice/job/memory.events"), Path("/proc/vmstat")]
    v1 = counter_files("5:cpu,cpuacct:/\n4:memory:/job\n", Path("/cg"))
    assert v1 == [Path("/cg/memory/job/memory.oom_control"), Path("/proc/vmstat")]


def test_this_system_can_be_read():
    """Whatever is mounted here, counting does not fail."""
    assert count_kills() >= 0


def test_what_is_said_of_a_sigkill():
    """Ours is called ours, a counted one probable, any other one from outside."""
    assert describe_kill("by its launcher: it was silent.", 3) == "by its launcher: it was silent."
    assert "out of memory: since the start the kernel has counted 1 out-of-memory kill." in describe_kill("", 1)
    assert "no out-of-memory kill has been counted" in describe_kill("", 0)


def test_too_little_address_space_is_one_message(tmp_path):
    """Under ulimit -v no program could import torch: said at once, not in a hundred lines for each rank and restart."""
    check_address_space(resource.RLIM_INFINITY)
    check_address_space(LEAST_ADDRESS_SPACE)
    with pytest.raises(
        ConfigError, match=r"at least 1,048,576 KB .* a limit of 600,000 KB\. Hint: ulimit -v unlimited"
    ):
        check_address_space(600_000 << 10)
    script = tmp_path / "script.py"
    script.write_text("import torch\n")
    for words in (("train", "digits", "-n", "2"), ("run", "-n", "2", str(script))):
        done = subprocess.run(
            ["/bin/sh", "-c", 'ulimit -v 600000; exec "$@"', "sh", sys.executable, "-m", "unisono", *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert "a limit of 600,000 KB" in done.stderr
