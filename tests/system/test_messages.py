"""What is said to the person at the terminal, and what is not."""

import io
import subprocess
import sys

import pytest

from unisono.system import messages
from unisono.system.messages import folded


@pytest.mark.parametrize(
    ("before", "last", "said"),
    [
        ("", "raise interrupted()", ""),
        ("", "deliver(2, signal.default_int_handler)", ""),
        ("", "interrupted(); raise KeyboardInterrupt", "KeyboardInterrupt\n"),
        ("", "interrupted(); 1 / 0", "ZeroDivisionError: division by zero\n"),
        ("explain_uncaught(); ", "raise interrupted()", ""),
        ("sys.excepthook = lambda *_: print('own', file=sys.stderr); ", "raise interrupted()", "own\n"),
    ],
)
def test_an_interrupt_that_has_been_answered(before, last, said):
    """Shows no traceback and ends by SIGINT; another exception shows its own, and a hook of the program's stays."""
    program = "import signal, sys; signal.signal(2, signal.default_int_handler); "
    program += "from unisono.launchers.local import deliver; "
    program += "from unisono.system.messages import explain_uncaught, interrupted; "
    ended = subprocess.run([sys.executable, "-c", program + before + last], capture_output=True, text=True, check=False)
    assert ended.stderr.endswith(said)
    assert bool(ended.stderr) == bool(said)
    assert ended.returncode == (1 if "1 / 0" in last else -2)


@pytest.mark.parametrize(
    ("before", "last", "said"),
    [
        ("", "1 / 0", "ZeroDivisionError: division by zero\n"),
        ("", "(0.5).backward()", "already. Hint: leave .backward() out.\n"),
        ("", "(0.5).item()", "already. Hint: use it as it is, without .item.\n"),
        ("", "(0.5).other()", "object has no attribute 'other'\n"),
        ("", "''.item()", "'str' object has no attribute 'item'\n"),
        ("sys.excepthook = lambda *_: print('own', file=sys.stderr); ", "(0.5).item()", "own\n"),
    ],
)
def test_an_error_that_is_explained(before, last, said):
    """What is asked of a float as if it were a loss is told what it is; other errors and other hooks stay."""
    program = f"import sys; from unisono.system.messages import explain_uncaught; {before}explain_uncaught(); {last}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.endswith(said)) == (1, True)


@pytest.mark.parametrize(("file", "place"), [("program.py", "program.py"), ("<frozen runpy>", messages.__file__)])
def test_a_warning_is_placed_at_a_line_of_the_program(file, place):
    """Or, of a recipe, at one of ours: it is shown without a place then. Python's start-up is none."""
    with pytest.warns(UserWarning, match="batch_size=5") as seen:
        exec(compile("warn('batch_size=5')", file, "exec"), {"warn": messages.warn})
    assert seen[0].filename == place


def test_in_a_notebook_messages_go_into_the_cell(monkeypatch):
    """The descriptor of a kernel's error output leads to the server's terminal, which nobody sees."""
    kind = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    monkeypatch.setattr(sys, "stderr", kind())
    messages.tell("stopped\x1b[31m at once")
    assert sys.stderr.getvalue() == "unisono: stopped at once\n"


def test_frames_of_others_are_folded():
    """One line for those that follow each other; a traceback without any other frame stays as it is."""
    theirs = '  File "/x/site-packages/torch/nn/linear.py", line 3, in forward\n    return f(x)\n           ^^^^\n'
    ours = f'  File "{messages.__file__}", line 5, in tell\n'
    own = '  File "/home/me/torch/train.py", line 9, in loss\n    model(x)\n'
    first, last = "Traceback (most recent call last):\n", "ValueError: no\nline 2"
    assert folded(first + own + ours + theirs + theirs + own + theirs + last) == (
        f"{first}{own}  ... 3 frames in torch and unisono\n{own}  ... 1 frame in torch\n{last}"
    )
    for kept in (first + ours + theirs + last, last):
        assert folded(kept) == kept
