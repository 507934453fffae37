"""What a launcher or a rank says to the person at the terminal: whole lines, without control characters (no torch)."""

import contextlib
import dis
import functools
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType, FunctionType, TracebackType
from typing import ParamSpec, TypeVar

from unisono.errors import UnisonoError
from unisono.system.hints import of_a_mistake
from unisono.system.words import counted

P = ParamSpec("P")
T = TypeVar("T")
_TORCH = f"-packages{os.sep}torch{os.sep}"
_SAYS_ALL = "_unisono_says_all"
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_FRAME = re.compile(r'^  File "(.+)", line .*\n(?:    .*\n)*', re.MULTILINE)
_FOREIGN = rf'(?=  File "(?:.*{re.escape(_TORCH)}|{re.escape(_OURS)}))'

CONTROL = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor moves
    rb"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # window titles, links
    rb"|\x1b[ -/]*[0-~]?"
    rb"|[\x00-\x08\x0b-\x1f\x7f]"
    rb"|\xc2[\x80-\x9f]"  # the same controls once more, as UTF-8
)


def tell(text: str) -> None:
    """Write a message to the error output, whole, without control characters; in a notebook into the cell."""
    lines = b"".join(CONTROL.sub(b"", line) + b"\n" for line in text.encode(errors="replace").split(b"\n"))
    with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads: no reason to end a training
        if type(sys.stderr).__module__.startswith("ipykernel."):  # its descriptor leads to the terminal of the server
            sys.stderr.write(f"unisono: {lines.decode(errors='replace')}")
            return
        os.write(sys.stderr.fileno(), b"unisono: " + lines)


def is_ours(file: str) -> bool:
    """Whether a source file is one of this package."""
    return file.startswith(_OURS)


def says_all(error: BaseException) -> bool:
    """Whether a line of this package has raised an error on purpose: its message says all."""
    if isinstance(error, UnisonoError) or hasattr(error, _SAYS_ALL):
        return True
    frames = _frames(error)
    if not frames or not is_ours((code := frames[-1].tb_frame.f_code).co_filename):
        return False
    return any(
        one.offset == frames[-1].tb_lasti and one.opname == "RAISE_VARARGS" for one in dis.get_instructions(code)
    )


def show_own_lines(error: BaseException) -> None:
    """Take frames of this package out of an error's traceback, as far as the program's own lines say enough.

    All of them, where a message or a note of ours says the rest; torch's too, where a hook of ours refuses. Else those
    before the first frame of the program or of a library; where none follows, all stay: the fault may be here.
    """
    frames = _frames(error)
    if says_all(error):
        vars(error)[_SAYS_ALL] = True
        while frames and (_is_our_frame(frames[-1]) or _TORCH in frames[-1].tb_frame.f_code.co_filename):
            frames.pop()
    elif not (frames and hasattr(error, "__notes__") and _is_our_frame(frames[-1])):
        error.__traceback__ = next((each for each in frames if not _is_our_frame(each)), error.__traceback__)
        return
    kept = None
    for each in reversed(frames):
        if not _is_our_frame(each):
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    error.__traceback__ = kept


def folded(text: str) -> str:
    """Return a formatted traceback in which frames of torch and of this package that follow each other are one line.

    Where no other frame is left, it stays as it is: the fault may be there.
    """
    whose = [_owner(found[1]) for found in _FRAME.finditer(text)]
    if all(whose):
        return text

    def fold(found: re.Match[str]) -> str:
        owners = [_owner(each[1]) for each in _FRAME.finditer(found[0])]
        return f"  ... {counted(len(owners), 'frame')} in {' and '.join(sorted(set(owners)))}\n"

    return re.sub(f"(?:{_FOREIGN}{_FRAME.pattern})+", fold, text, flags=re.MULTILINE)


def _owner(file: str) -> str:
    """Return ``torch`` or ``unisono`` for a file of theirs, nothing for another."""
    return "torch" if _TORCH in file else "unisono" if is_ours(file) else ""


def with_own_lines(function: Callable[P, T]) -> Callable[P, T]:
    """Let errors leave a function without frames of this package, as `show_own_lines` does."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            show_own_lines(error)
            raise

    return call


def _frames(error: BaseException) -> list[TracebackType]:
    """Return the entries of an error's traceback, the outermost first."""
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _is_our_frame(trace: TracebackType) -> bool:
    frame = trace.tb_frame
    is_made = frame.f_code.co_filename == "<string>" and frame.f_globals.get("__name__", "").startswith("unisono.")
    return is_made or is_ours(frame.f_code.co_filename)  # made: a dataclass's __init__


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
        show_own_lines(found)
        if note := of_a_mistake(found):
            found.add_note(note)
        sys.__excepthook__(kind, found, traceback)
        tell_uncaught(found)

    sys.excepthook = hook


def on_uncaught(tell: Callable[[BaseException], None]) -> None:
    """Call `tell` with the error that ends the program, once it has been shown."""
    _listeners.append(tell)


def tell_uncaught(error: BaseException) -> None:
    """Tell those who have asked to hear of the error that ends the program."""
    for tell in _listeners:
        tell(error)


_listeners: list[Callable[[BaseException], None]] = []


def warn(text: str) -> None:
    """Issue a `UserWarning` at the line of the program that has led here, however deep in this package."""
    level, frame = 1, sys._getframe(0)
    while frame.f_code.co_filename.startswith(_OURS) and isinstance(frame.f_back, FrameType):
        level, frame = level + 1, frame.f_back
    is_recipe = frame.f_code.co_filename.startswith("<frozen ")  # whose program is ours, started as a module
    warnings.warn(text, stacklevel=level - is_recipe)
