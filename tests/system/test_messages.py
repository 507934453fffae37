"""What is said to the person at the terminal, and what is not."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("before", "last", "said"),
    [
        ("", "raise interrupted()", ""),
        ("", "deliver(2, signal.default_int_handler)", ""),
        ("", "interrupted(); raise KeyboardInterrupt", "KeyboardInterrupt\n"),
        ("", "interrupted(); 1 / 0", "ZeroDivisionError: division by zero\n"),
        ("sys.excepthook = lambda *_: print('own', file=sys.stderr); ", "raise interrupted()", "own\n"),
    ],
)
def test_an_interrupt_that_has_been_answered(before, last, said):
    """Shows no traceback and ends by SIGINT; another exception shows its own, and a hook of the program's stays."""
    program = "import signal, sys; signal.signal(2, signal.default_int_handler); "
    program += "from unisono.launchers.local import deliver; from unisono.system.messages import interrupted; "
    ended = subprocess.run([sys.executable, "-c", program + before + last], capture_output=True, text=True, check=False)
    assert ended.stderr.endswith(said)
    assert bool(ended.stderr) == bool(said)
    assert ended.returncode == (1 if "1 / 0" in last else -2)
