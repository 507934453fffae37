"""What every process of a job begins with: it runs the tree it is meant for, says so in a file, or ends."""

import os
import sys
from pathlib import Path

import unisono

_home, _meant = Path(unisono.__file__).resolve().parent, Path(os.environ["SAME_BITS_SRC"], "unisono").resolve()
if _home != _meant:
    sys.stderr.write(f"same-bits: expected unisono of {_meant}, got that of {_home}.\n")
    sys.stderr.flush()
    os._exit(3)
with open(os.environ["SAME_BITS_SEEN"], "a") as _seen:  # noqa: PTH123 - one line at once, appended by many processes
    _seen.write(f"{os.getpid()} {_home}\n")
