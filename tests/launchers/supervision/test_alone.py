"""Workers that train the same thing side by side are told so, and nobody else is."""

import sys

import pytest

from unisono.launchers.supervision.alone import _own_sources, has_trained_alone

SCRIPT = """
import sys
import torch
from unisono.launchers.supervision.alone import has_trained_alone
assert not has_trained_alone()  # nothing is trained yet
weight = torch.zeros(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
with torch.no_grad():
    weight.copy_(torch.ones(3) * 2)
assert not has_trained_alone()  # an optimizer, and weights that were loaded
weight.sum().backward()
optimizer.step()
assert has_trained_alone()
if "group" in sys.argv:
    torch.distributed.init_process_group("gloo")
    assert not has_trained_alone()
    torch.distributed.barrier()  # who leaves before the other is in takes the store along
    torch.distributed.destroy_process_group()
    assert not has_trained_alone()  # it has had one
"""
NOTE = "unisono: each of the 2 workers has trained by itself: none has joined the others"


@pytest.mark.slow
def test_workers_that_never_meet(place):
    """A plain training on two workers gives two of the same: said once, at the end, and the exit code stays 0."""
    result = place.run(SCRIPT, "-n2")
    assert (result.returncode, result.stderr.count(NOTE)) == (0, 1), result.stderr
    assert "Hint: unisono.Run() joins them" in result.stderr


@pytest.mark.slow
def test_workers_that_have_met(place):
    """Control: with a process group, also one that is gone by the end, nothing is said."""
    result = place.run(SCRIPT, "-n2", args=("group",))
    assert (result.returncode, result.stderr) == (0, "")


def test_scripts_that_only_print(place):
    """Without an optimizer nothing was trained, whatever the workers do."""
    result = place.run("print('done')", "-n2")
    assert (result.returncode, result.stderr) == (0, "")


def test_programs_that_know_their_rank(place, monkeypatch):
    """A file of the program's own that speaks of ranks leaves it in peace: it may share out work by itself."""
    import torch

    weight = torch.zeros(1, requires_grad=True)
    torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    place.write("TRIALS = 3\n", "plain_trials.py")
    place.write("import os; MINE = os.environ.get('RANK')\n", "shared_trials.py")
    monkeypatch.syspath_prepend(place.folder)
    for name, knows in (("plain_trials", False), ("shared_trials", True)):
        before = set(sys.modules)
        __import__(name)
        own = [text for text in _own_sources() if text.startswith((b"TRIALS", b"import os; MINE"))]
        assert [b"RANK" in text for text in own] == [knows]
        for each in set(sys.modules) - before:
            del sys.modules[each]
    assert not has_trained_alone()  # these tests themselves speak of ranks
