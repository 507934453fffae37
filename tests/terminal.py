"""A program on a terminal of its own."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Sequence


def run_on_terminal(command: Sequence[str], columns: int = 80, **more: str) -> str:
    """Run a command, which must succeed, and return everything that reached the screen; `more` variables are set."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    child = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env | {"TERM": "xterm"} | more)
    os.close(slave)
    screen = b""
    try:
        while data := os.read(master, 65536):
            screen += data
    except OSError:  # the terminal's other end is closed
        pass
    os.close(master)
    assert child.wait() == 0, screen.decode()
    return screen.decode()
