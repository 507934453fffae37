"""``unisono`` and ``python -m unisono``: the command line, and what Ctrl-C and SIGTERM say while it is being loaded."""

import os
import signal
import sys

TYPE_CHECKING = False  # typing is not loaded before Ctrl-C is answered
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def main() -> "NoReturn":
    """Run the command line; exits with the verb's code."""
    taken = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {signum: usual for signum, usual in taken.items() if signal.getsignal(signum) == usual}
    for signum in before:
        signal.signal(signum, _nothing_begun)
    from unisono.cli import main as command_line

    for signum, usual in before.items():
        signal.signal(signum, usual)
    command_line.main()


def _nothing_begun(signum: int, frame: "FrameType | None") -> "NoReturn":
    """Say it and end at once: an exception in the midst of an import may come out as another."""
    import shlex

    what = "interrupted" if signum == signal.SIGINT else "terminated"
    again = shlex.join(["unisono", *sys.argv[1:]])
    os.write(2, f"unisono: {what}. Nothing was begun. Again: {again}\n".encode(errors="surrogateescape"))
    os._exit(128 + signum)


if __name__ == "__main__":
    main()
