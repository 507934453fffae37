"""Freed memory is kept: a training's second step faults in no fresh pages."""

import subprocess
import sys

CODE = """
import resource, sys
import numpy as np
from unisono.system.memory import keep_freed_memory
print(keep_freed_memory() if "keep" in sys.argv else "")
def step():
    return [np.ones(1 << 20) for _ in range(3)]  # 8 MiB each
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments: str) -> tuple[str, int]:
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True)
    told, _, count = done.stdout.partition("\n")
    return told, int(count)


def test_steps_fault_no_pages_in():
    """With it hardly a page; without it (the control) memory comes from the kernel again and again, or as before."""
    told, kept = faults("keep")
    _, plain = faults()
    if told == "True":
        assert kept < 1000
        assert kept <= plain
