"""Run a program in torchrun's worker, and leave as a worker of ours leaves: `until_asleep.py PROGRAM ARGUMENT...`.

Torch ends a process by SIGABRT whose gloo threads are at work when the interpreter ends (`unisono.system.leaving`).
What the program prints and records before is the reference; it is not touched by the wait.
"""

import runpy
import sys
from pathlib import Path

from unisono.system.leaving import leave_groups_at_exit

leave_groups_at_exit()  # the first that is registered is the last that is called
sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
