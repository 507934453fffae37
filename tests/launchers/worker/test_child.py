"""The first code of a worker: what it does not show."""

import subprocess
import sys

PROGRAM = """
import gc
from unisono.launchers.worker.child import pass_over_ended_loaders

class _MultiProcessingDataLoaderIter:
    def __init__(self, text):
        self.text = text
    def __del__(self):
        raise RuntimeError(self.text)

class Other(_MultiProcessingDataLoaderIter):
    def __del__(self):
        raise RuntimeError(self.text)

pass_over_ended_loaders()
for kind, text in (
    (_MultiProcessingDataLoaderIter, "DataLoader worker (pid 7) is killed by signal: Terminated. "),
    (_MultiProcessingDataLoaderIter, "another trouble"),
    (Other, "DataLoader worker, another class"),
):
    each = kind(text)
    del each
    gc.collect()
"""


def test_ended_loaders_are_passed_over():
    """What torch raises in a loader's `__del__` because its process was ended too is not shown; all else is."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=True)
    assert "is killed by signal" not in done.stderr
    assert done.stderr.count("Exception ignored") == 2
    assert "another trouble" in done.stderr
    assert "another class" in done.stderr
