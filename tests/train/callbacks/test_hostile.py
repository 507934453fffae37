"""Callbacks that misbehave on one of two processes end the run, in time, with one message that says what it was.

More of them on loopback ranks, in `test_chain`: other names, a collective on the leader only, a batch written to.
"""

import subprocess
import sys
import time

import pytest

DEADLINE_S = 120  # processes that import torch on a busy machine; a hang would take the transport's 300 s

SCRIPT = """
import sys
sys.path[:0] = {paths!r}
from train.callbacks.hostile_programs import play
play({kind!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sleeps", ["callback Sleeps.on_step_end at step 3 took longer than 2 s", "rank 1 of 2"]),
        ("meets", ["the ranks are doing different things", "rank 0: step 3: barrier", "rank 1: step 4: "]),
        ("raises", ["divided by hand", "in callback RaisesOnOneRank.on_step_end, step 3, on rank 1 of 2"]),
    ],
)
def test_it_ends_in_time_with_one_message(kind, words, tmp_path):
    """Exit code not 0, long before the transport's own patience ends; the cause is said, and one traceback shown."""
    script = tmp_path / "hostile.py"
    script.write_text(SCRIPT.format(paths=[path for path in sys.path if path], kind=kind))
    began = time.monotonic()
    command = [sys.executable, "-m", "unisono", "run", "-n", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode != 0
    for word in words:
        assert word in done.stderr, done.stderr
    assert done.stderr.count("Traceback (most recent call last)") <= 1
    assert time.monotonic() - began < DEADLINE_S
