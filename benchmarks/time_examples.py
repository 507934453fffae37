"""How long the examples take: each as a program of its own, one after the other, in an empty directory.

    python benchmarks/time_examples.py [NAME ...]

Prints seconds by the wall and CPU seconds of all processes (user and system), with the load of the machine before each.
On a busy machine only the CPU seconds say something, and they too are some tenths too high.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def cpu_s() -> float:
    """Return the CPU seconds of all processes that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(names: list[str]) -> None:
    """Run and time the examples."""
    print(f"{'example':<20} {'wall s':>7} {'CPU s':>7} {'load':>6}")
    for name in names or sorted(path.stem for path in EXAMPLES.glob("*.py")):
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            before, began = cpu_s(), time.monotonic()
            done = subprocess.run(
                [sys.executable, EXAMPLES / f"{name}.py"], cwd=folder, capture_output=True, text=True, check=False
            )
            wall, used = time.monotonic() - began, cpu_s() - before
        if done.returncode:
            sys.exit(f"{name} ended with code {done.returncode}:\n{done.stderr}")
        print(f"{name:<20} {wall:>7.1f} {used:>7.1f} {load:>6.1f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
