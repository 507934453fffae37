"""From errors to exit codes and one message, the same for every verb."""

import functools
import inspect
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import click

from unisono.cli.options.settings import is_quiet
from unisono.cli.output.examples import shown
from unisono.errors import ConfigError, DataError, RunStopped, UnisonoError, WorkerFailed
from unisono.system.words import wrapped

USAGE_ERROR = 2
FAILED = 1
INTERRUPTED = 130
TERMINATED = 143
_LONGEST_LINE = 2400


class Terminated(SystemExit):
    """SIGTERM came: the program ends with 143, after it has said what is kept."""


def hear_terminations() -> None:
    """Let SIGTERM end the program by an exception, as Ctrl-C does, unless it is ignored or answered already."""

    def end(signum: int, frame: FrameType | None) -> NoReturn:
        raise Terminated(TERMINATED)

    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


def tidy(message: str) -> str:
    """Return a message with control characters spelled out, and lines of a length that can be read."""
    lines = "".join(char if char >= " " or char in "\n\t" else ascii(char)[1:-1] for char in message).split("\n")
    return "\n".join(line if len(line) <= _LONGEST_LINE else f"{line[:1000]} ... {line[-1000:]}" for line in lines)


def command_line() -> str:
    """Return the command of this call, as it would be typed again."""
    return shlex.join(["unisono", *sys.argv[1:]])


def nothing_kept(what: str) -> Callable[..., str]:
    """Return what a verb with runs of its own says after Ctrl-C: that it keeps nothing, and how to begin anew."""
    return lambda *_: f"Nothing is kept of {what}. Again: {command_line()}"


def fitted(text: str, err: bool = False) -> str:
    """Return text as a terminal shows it without breaking a word; for a pipe as it is."""
    is_terminal = (sys.stderr if err else sys.stdout).isatty()
    return wrapped(text, shutil.get_terminal_size().columns) if is_terminal else text


def tell(line: str) -> None:
    """Print what is going on, beside the answer; nothing with ``--quiet``."""
    if not is_quiet():
        complain(line)


def complain(line: str) -> None:
    """Print what is not as it should be, beside the answer; with ``--quiet`` too."""
    click.echo(fitted(line, err=True), err=True)


def conclude(equal: bool, as_json: bool) -> int:
    """Print whether runs are equal, unless the answer was JSON, which says it; return the exit code."""
    if not as_json:
        click.echo("equal" if equal else "DIFFERENT")
    return 0 if equal else FAILED


def verb(
    name: str, interrupted: Callable[[dict[str, Any]], str] | None = None, *, keeps_runs: bool = False
) -> Callable[[Callable[..., int | None]], Callable[..., NoReturn]]:
    """Return a decorator that makes a verb of its work: the process ends with the code of `perform`.

    Args:
        name: Named in messages; its examples are shown by ``--help``.
        interrupted: As `perform` takes it, but is given the verb's options.
        keeps_runs: As `perform` takes it.
    """

    def make(action: Callable[..., int | None]) -> Callable[..., NoReturn]:
        @functools.wraps(action)
        def run(**given: Any) -> NoReturn:
            said = None if interrupted is None else lambda: interrupted(given)
            sys.exit(perform(name, lambda: action(**given), said, keeps_runs=keeps_runs))

        run.__doc__ = inspect.cleandoc(action.__doc__ or "") + shown(name)
        return run

    return make


def perform(
    verb: str,
    action: Callable[[], int | None],
    interrupted: Callable[[], str] | None = None,
    *,
    keeps_runs: bool = False,
) -> int:
    """Do a verb's work and return its exit code; errors become one message on standard error.

    Args:
        verb: Named in the message.
        action: The work; returns an exit code, None for success.
        interrupted: Returns what to say after Ctrl-C and SIGTERM: what is kept, and the command that goes on; None: the
            command; nothing where it returns nothing.
        keeps_runs: Whether a run that was asked to stop, and has saved, is there to go on with: then that is the code.

    Raises:
        RunStopped: A run that is kept was asked to stop, and has saved.
        RuntimeError: As it came; not where Ctrl-C is its cause.

    Returns:
        0 on success; 2 for wrong settings; a failed worker's own code (128 + n for signal n); 130 after Ctrl-C; 143
        after SIGTERM; 141 when the reader of the output went away; 1 for any other error of ours.
    """
    try:
        return action() or 0
    except RunStopped:
        if keeps_runs:
            click.echo(f"unisono {verb}: go on with: {command_line()}", err=True)
        if keeps_runs or interrupted is None:
            raise
        return _interrupted(verb, interrupted)
    except (KeyboardInterrupt, Terminated) as error:
        return _interrupted(verb, interrupted, error)
    except BrokenPipeError:
        # Nothing may be written at exit either: the interpreter would complain about the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return 141
    except UnisonoError as error:
        click.echo(tidy(f"unisono {verb}: {error}"), err=True)
        if isinstance(error, WorkerFailed):
            return error.exit_code
        return USAGE_ERROR if isinstance(error, ConfigError | DataError) else FAILED
    except RuntimeError as error:
        if not isinstance(error.__cause__, KeyboardInterrupt | Terminated):
            raise
        # in the midst of an import: until 3.12 a class that is made wraps it
        return _interrupted(verb, interrupted, error.__cause__)


def _interrupted(verb: str, what: Callable[[], str] | None, by: BaseException | None = None) -> int:
    said = what() if what is not None else f"Again: {command_line()}"
    how, code = ("terminated", TERMINATED) if isinstance(by, Terminated) else ("interrupted", INTERRUPTED)
    if said:
        click.echo(f"unisono {verb}: {how}. {said}", err=True)
    return code
