"""What the kernel shows of processes, seen on real ones."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from unisono.system.processes import Process, boot_id, look_at, name_of_this_host


def test_state_and_start_of_a_process_are_read():
    """A running, a stopped, a dead and a missing process are told apart, whatever brackets a name has."""
    program = "from pathlib import Path; Path('/proc/self/comm').write_text('a) Z (b'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        running = look_at(child.pid)
        assert running.state in ("R", "S") and running.start_ticks >= look_at(os.getpid()).start_ticks > 0
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert look_at(child.pid) == Process("T", running.start_ticks)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert look_at(child.pid) == Process("Z", -1)
    assert look_at(child.pid) == Process()


ASK = "from unisono.system.processes import die_with_parent; die_with_parent({}); print('asked', flush=True); input()"


def test_a_process_ends_with_the_one_that_started_it():
    """SIGKILL of the parent ends the child, and does not end one that has not asked."""
    middle = (
        "import subprocess, sys\n"
        "def start(program):\n"
        "    child = subprocess.Popen([sys.executable, '-c', program], stdin=0, stdout=subprocess.PIPE)\n"
        "    child.stdout.readline(); print(child.pid, flush=True)\n"
        f"start({ASK.format('')!r}); start('print(flush=True); input()'); input()"
    )
    with subprocess.Popen([sys.executable, "-c", middle], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        asked, free = (os.pidfd_open(int(parent.stdout.readline())) for _ in range(2))
        try:
            parent.kill()
            assert select.select([asked], [], [], 30)[0]
            assert not select.select([free], [], [], 0)[0]  # the control
        finally:
            signal.pidfd_send_signal(free, signal.SIGKILL)
            os.close(asked)
            os.close(free)


def test_who_asks_too_late_ends_at_once():
    """A parent that has ended before the kernel was asked ends the child too."""
    late = subprocess.run([sys.executable, "-c", ASK.format(1 << 30)], stdin=subprocess.DEVNULL, check=False)
    assert late.returncode == -signal.SIGKILL


def test_the_machine_has_a_name_of_its_own():
    """The name of the host holds the kernel's id of this start."""
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert boot_id() in name_of_this_host()
