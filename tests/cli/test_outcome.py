"""Every verb ends with the same exit codes and one message."""

import subprocess
import sys

import pytest

from unisono import errors
from unisono.cli.outcome import FAILED, USAGE_ERROR, perform, tidy


def raising(error):
    def action():
        raise error

    return action


def test_success_is_zero_and_silent(capsys):
    """No message and code 0, unless the action has a code of its own."""
    assert perform("train", lambda: None) == 0
    assert perform("verify", lambda: FAILED) == FAILED == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("wrong"), USAGE_ERROR),
        (errors.ScoreMismatch("other"), 2),
        (errors.EnvironmentDrift("moved"), 2),
        (errors.DataError("torn"), 2),
        (errors.LaunchError("no room"), 1),
        (errors.CheckpointError("full"), 1),
        (errors.WorldError("half"), 1),
        (errors.WorkerFailed("rank 1", rank=1, exit_code=137), 137),
        (errors.WorkerFailed("rank 0", rank=0, exit_code=2), 2),
    ],
)
def test_our_errors_are_one_message_and_a_code(capsys, error, code):
    """Wrong settings and data are 2, a worker's failure is its own code, anything else of ours 1."""
    assert perform("train", raising(error)) == code
    assert capsys.readouterr() == ("", f"unisono train: {error}\n")


def test_an_interrupt_is_130_without_a_message(capsys):
    """Ctrl-C is no error to be explained."""
    assert perform("train", raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "")


def test_a_bug_is_not_hidden():
    """An error that is not ours keeps its traceback."""
    with pytest.raises(ZeroDivisionError):
        perform("train", raising(ZeroDivisionError()))


def test_a_reader_that_goes_away_is_141_without_a_word():
    """Where the pipe is closed, the verb ends quietly with the code of SIGPIPE, also at interpreter exit."""
    code = (
        "import sys; from unisono.cli.outcome import perform; "
        "sys.exit(perform('x', lambda: [print('line ' * 100) for _ in range(1000)] and None))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == 141


def test_a_message_cannot_flood_or_steer_the_terminal(capsys):
    """Control characters are spelled out, and a line that is longer than anybody reads keeps both its ends."""
    assert tidy("a\x1b[31m\0b\n\tc µ") == "a\\x1b[31m\\x00b\n\tc µ"
    assert perform("train", raising(errors.ConfigError(f"got {'x' * 100_000}. Hint: less"))) == 2
    told = capsys.readouterr().err
    assert len(told) < 2500
    assert told.startswith("unisono train: got xxx")
    assert told.endswith(". Hint: less\n")
