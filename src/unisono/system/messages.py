"""What a launcher or a rank says to the person at the terminal: whole lines, without control characters (no torch)."""

import contextlib
import os
import re
import sys
import warnings
from pathlib import Path
from types import FrameType, FunctionType, TracebackType

from unisono.system.hints import of_a_float

_OURS = f"{Path(__file__).parents[1]}{os.sep}"

CONTROL = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor moves
    rb"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # window titles, links
    rb"|\x1b[ -/]*[0-~]?"
    rb"|[\x00-\x08\x0b-\x1f\x7f]"
    rb"|\xc2[\x80-\x9f]"  # the same controls once more, as UTF-8
)


def tell(text: str) -> None:
    """Write a message to the error output, whole, without control characters."""
    lines = b"".join(CONTROL.sub(b"", line) + b"\n" for line in text.encode(errors="replace").split(b"\n"))
    with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads: no reason to end a training
        os.write(sys.stderr.fileno(), b"unisono: " + lines)


def is_ours(file: str) -> bool:
    """Whether a source file is one of this package."""
    return file.startswith(_OURS)


def hide_our_frames(error: Exception) -> None:
    """Take the frames of this package out of the traceback of an error whose message says it all; others stay."""
    frames, found = [], error.__traceback__
    while found is not None:
        if not is_ours(found.tb_frame.f_code.co_filename):
            frames.append(found)
        found = found.tb_next
    kept = None
    for each in reversed(frames):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    error.__traceback__ = kept


def interrupted() -> KeyboardInterrupt:
    """Return the exception of a Ctrl-C that has been answered: where it ends the program, Python shows no traceback.

    A hook of the program's own (``sys.excepthook``) stays, and so does the exit by SIGINT.
    """
    error, before = KeyboardInterrupt(), sys.excepthook

    def hook(kind: type[BaseException], found: BaseException, traceback: TracebackType | None) -> None:
        if found is not error:
            before(kind, found, traceback)

    if is_ours(before.__code__.co_filename if isinstance(before, FunctionType) else "") or before is sys.__excepthook__:
        sys.excepthook = hook
    return error


def explain_uncaught() -> None:
    """Let Python's own hook say of an uncaught error what is known of it; a hook of the program's own stays."""
    if sys.excepthook is not sys.__excepthook__:
        return

    def hook(kind: type[BaseException], found: BaseException, traceback: TracebackType | None) -> None:
        if note := of_a_float(found):
            found.add_note(note)
        sys.__excepthook__(kind, found, traceback)

    sys.excepthook = hook


def warn(text: str) -> None:
    """Issue a `UserWarning` at the line of the program that has led here, however deep in this package."""
    level, frame = 1, sys._getframe(0)
    while frame.f_code.co_filename.startswith(_OURS) and isinstance(frame.f_back, FrameType):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
