"""Gradients that leave during the backward pass: the bits are those of gradients that leave behind it."""

import time

import pytest

from forks import run_forked
from places import Place
from ranks import once, run_threads
from strategies import overlap_programs

CASES = list(overlap_programs.CASES)
QUICK = ["many_placements", "reentrant", "end_of_backward", "hooks data middle", "absent", "frozen", "mixed", "failing",
         "rounded bf16", "rounded int8"]  # fmt: skip
"""What the default tests play."""
OVER_MEMORY = ["plain", "many_placements", "absent", "frozen", "not_finite", "mixed", "hooks data middle",
               "rounded int8"]  # fmt: skip


@once
def launched(world_size):
    """Return every rank's report of all cases (of two ranks: the quick ones) over gloo."""
    return run_forked(overlap_programs.play, world_size, QUICK if world_size == 2 else CASES, ["off", "on"])


@once
def sharing():
    """Return every rank's report of some cases over shared memory."""
    return run_forked(overlap_programs.play, 3, OVER_MEMORY, ["off", "on"], True)


def check(name, reports):
    """All claims hold on every rank, on and off give the same bits, and only on lets gradients leave early."""
    for report in reports:
        off, on = report[f"{name} off"], report[f"{name} on"]
        assert [claim for one in (off, on) for claim, is_true in one["claims"].items() if not is_true] == []
        assert off["digest"] == on["digest"] == reports[0][f"{name} off"]["digest"] != ""
        assert off["early"] == 0
        assert on["early"] == (0 if name in overlap_programs.NEVER_EARLY else 2)


@pytest.mark.parametrize("name", QUICK)
def test_same_bits_over_messages(name):
    """Every case keeps its promise: see the cases' docstrings."""
    check(name, launched(2))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_same_bits_over_messages_on_three(name):
    """All cases, on ranks whose replicas are several subtrees."""
    check(name, launched(3))


@pytest.mark.slow
@pytest.mark.parametrize("name", OVER_MEMORY)
def test_same_bits_over_shared_memory(name):
    """Asked for where it is not usual, it changes nothing either."""
    check(name, sharing())


def test_other_trainings_have_other_digests():
    """Negative control: the digests are of what was trained, and the same on one rank alone."""
    names = ["absent", "frozen", "mixed", "failing", "rounded bf16", "rounded int8"]
    alone = run_threads(overlap_programs.play, 1, names, ["auto"])[0]
    assert len({alone[f"{name} auto"]["digest"] for name in names}) == len(names)
    assert all(alone[f"{name} auto"]["digest"] == launched(2)[0][f"{name} on"]["digest"] for name in names)


def test_ranks_in_threads_take_no_helpers():
    """Loopback's ranks hand on a baton, which no second thread may hold: there, nothing leaves early."""
    for report in run_threads(overlap_programs.play, 2, ["absent"], ["on"]):
        assert report["absent on"]["early"] == 0
        assert report["absent on"]["digest"] == launched(2)[0]["absent on"]["digest"]


FAILS = """
import os, signal, sys, torch, unisono
from torch import nn
from torch.nn import functional as F

class Fail(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        if step == 4 and run.world.rank == 1 and passes == 2:  # the later layers' gradients have left
            if sys.argv[1] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("of the program's own")
        return grad

torch.manual_seed(0)
run = unisono.Run(seed=0, replicas=4, transport="gloo")
model = nn.Sequential(nn.Linear(16, 256), *[nn.Linear(256, 256) for _ in range(6)], nn.Linear(256, 4))
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
x = torch.randn(80, 16)
for batch in run.steps(run.loader(unisono.ArrayDataset(x, x[:, :4].argmax(1)), batch_size=8), epochs=1):
    step, passes = batch.step, 0
    def loss(micro):
        global passes
        passes += 1
        return F.cross_entropy(model[3:](Fail.apply(model[:3](micro.x))), micro.y)
    run.step(batch, loss)
"""


@pytest.fixture
def here(tmp_path):
    """Return a place for scripts."""
    place = Place(tmp_path)
    yield place
    place.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("raise", 1, ["ValueError: of the program's own", "in step 4, replica 3 of 4"]),
        ("kill", 137, ["rank 1 of 2 was killed by SIGKILL"]),
    ],
)
def test_a_rank_that_fails_while_gradients_are_on_their_way(here, how, code, words):
    """The run ends at once with that rank's own failure; no thread holds a process back, and none ends by SIGABRT."""
    started = time.monotonic()
    done = here.run(FAILS, "-n", "2", args=(how,))
    assert done.returncode == code, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert "terminate called" not in done.stderr + done.stdout
    assert time.monotonic() - started < 60
