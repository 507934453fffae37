"""Steps that a resume computes again are compared with the lines they had."""

import contextlib
import subprocess
import sys
import warnings

import pytest
from torch.nn import functional as F

from train.conftest import Killed, die
from unisono.collectives.loopback import run_ranks
from unisono.strategies.catalog import CATALOG


class Factor:
    """What decays from step to step, with its state."""

    def __init__(self):
        self.value = 1.0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def train(toy, out, transport=None, *, kept="", own="", dies_in=None, **settings):
    """Train 10 steps with a checkpoint every 4 and a loss that decays; die within a step, as by SIGKILL.

    The factor is the loop's own, or is kept: ``step``, computed from it; ``registered``. `own`: Whether each rank has a
    directory of its own, as those of several hosts.
    """
    settings |= {"transport": transport} if transport else {}
    with toy.run(out=out / (own and str(transport.rank)), checkpoint_every=4, **settings) as (run, model, _):
        factor = Factor()
        if kept == "registered":
            run.register("factor", factor)
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
            scale = 0.9**batch.step if kept == "step" else factor.value
            if batch.step == dies_in:
                with contextlib.suppress(Killed):
                    run.step(batch, die)
                return
            run.step(batch, lambda micro, scale=scale: scale * F.cross_entropy(model(micro.x), micro.y))
            factor.value *= 0.9


def resumed(toy, out, before=1, after=1, *, kept="", own="", **settings):
    """Return what is warned of where a run on `before` ranks dies in step 8 and goes on, on `after` ranks.

    But for what the source tells: that `factor.value` is carried.
    """
    for ranks, more in ((before, {"dies_in": 8}), (after, settings)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            run_ranks(lambda transport, more=more: train(toy, out, transport, kept=kept, own=own, **more), ranks)
    return [text for each in told if "`factor.value`" not in (text := str(each.message))]


@pytest.mark.parametrize(("ranks", "own"), [(1, ""), (2, ""), (2, "own")])
def test_a_loop_whose_own_variables_begin_again(toy, tmp_path, ranks, own):
    """Step 5 has another loss than before: said once, by one rank, with the field."""
    (told,) = resumed(toy, tmp_path, ranks, ranks, own=own)
    assert "step 5 was computed again after the resume, and is another than before in loss, gradient (loss " in told


@pytest.mark.parametrize(("before", "after", "kept"), [(1, 1, "registered"), (2, 1, "step")])
def test_an_honest_loop_says_nothing(toy, tmp_path, before, after, kept):
    """Also where it goes on with another number of workers."""
    assert resumed(toy, tmp_path, before, after, kept=kept) == []


def test_what_may_change_is_not_compared(toy, tmp_path, monkeypatch):
    """With allow_drift other bits are no surprise; nor in a strategy whose bits are those of who comes first."""
    assert resumed(toy, tmp_path / "drift", allow_drift=True) == []
    assert [name for name, options in CATALOG.items() if not options.is_repeatable] == ["ps_async"]
    monkeypatch.setattr(CATALOG["exact"], "is_repeatable", False)
    assert resumed(toy, tmp_path / "async") == []


PROGRAM = """
import os, time, torch, unisono
from torch.nn import functional as F
run = unisono.Run(seed=0, replicas=4, out="run", checkpoint_every=4,
                  checkpoints=unisono.CheckpointPolicy(in_background=False))
model, optimizer = run.prepare(model := torch.nn.Linear(6, 4), torch.optim.SGD(model.parameters(), lr=0.1))
draws, factor = torch.Generator().manual_seed(0), 1.0
data = unisono.ArrayDataset(torch.randn(60, 6, generator=draws), torch.randint(0, 4, (60,), generator=draws))
for batch in run.steps(run.loader(data, batch_size=12), epochs=2):
    run.step(batch, lambda micro: factor * F.cross_entropy(model(micro.x), micro.y))
    factor *= 0.9
    if batch.step in (6, 7) and not os.path.exists("died"):
        time.sleep(0.21)  # the next line is written at once, with those that wait
    if batch.step == 7 and not os.path.exists("died"):
        while len(open("run/ledger.jsonl").readlines()) < 6:
            time.sleep(0.01)
        open("died", "w").close()
        os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_restart_by_the_launcher(tmp_path):
    """A real program of this kind that is killed: the restart in the same launch tells it, once."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "unisono", "run", "-n", "1", "--max-restarts", "1", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("computed again after the resume, and is another than before in") == 1, done.stderr
    assert "UserWarning: step 5 was computed again" in done.stderr
