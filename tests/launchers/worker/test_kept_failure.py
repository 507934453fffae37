"""The error that ends a program with a run is kept in the run directory, for whoever looks at it later."""

import json
import re
import subprocess
import sys

import pytest

from unisono.launchers.worker.kept_failure import NAME, kept_failure
from unisono.report.run_view import how_it_ended
from unisono.report.sources import sections_of
from unisono.report.watch.state import WatchedRun
from unisono.report.watch.told import verdict

PROGRAM = """
import os, signal, sys, torch, unisono
from torch import nn
run = unisono.Run(seed=0, replicas=2, out="run")
model = nn.Linear(2, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
def stop(where):
    if sys.argv[1] == where:
        raise ValueError(f"boom {where}")
    if sys.argv[1] == f"kill {where}":
        os.kill(os.getpid(), signal.SIGKILL)
stop("early")
loader = run.loader(unisono.ArrayDataset(torch.ones(8, 2).numpy(), torch.ones(8, 1).numpy()), batch_size=4)
for batch in run.steps(loader, epochs=1):
    run.step(batch, lambda micro: stop("first") or nn.functional.mse_loss(model(micro.x), micro.y))
    stop("later")
"""


def play(place, how, *command):
    """Run the program until it fails; what the view and the page say of it."""
    (place / "train.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, *command, "train.py", how], cwd=place, capture_output=True, timeout=120)
    assert done.returncode != 0
    run = WatchedRun(place / "run")
    assert run.state == "ended"
    (section,) = sections_of([place / "run"])[1]
    return verdict(run)[0], " ".join(remark.text for remark in section.findings)


@pytest.mark.parametrize("command", [(), ("-m", "unisono", "run", "-n", "2")])
@pytest.mark.parametrize(
    ("how", "early"), [("early", " before its first step"), ("first", " before its first step"), ("later", "")]
)
def test_an_error_is_told(command, how, early, tmp_path):
    """What it was, in which line of the program, and where the traceback is: with our launcher and without."""
    said, page = play(tmp_path, how, *command)
    told = re.match(
        rf"it failed{early}: rank [01] with ValueError: boom {how} \(.*train\.py:\d+\)", said
    )  # whoever was last
    assert told, said
    assert told[0][3:] in page
    assert f"Its traceback is in {tmp_path / 'run' / NAME}" in said
    kept = kept_failure(tmp_path / "run", 1)
    assert kept.traceback.rstrip().splitlines()[-1].startswith(("ValueError: boom", "in step 1"))
    assert kept_failure(tmp_path / "run", 2) is None  # it says nothing of the next launch


def test_a_kill_leaves_no_error(tmp_path):
    """Nothing is kept, and nothing is made up; a launch that dies before its first step is seen."""
    for how in ("kill early", "kill first"):
        said, page = play(tmp_path, how)
        assert "ended before its first step, not finished: killed, or its error is in the output of its command" in said
        assert "ended before its first step" in page
    assert said.startswith("launch 2 ")


def test_a_damaged_file_says_nothing(tmp_path):
    """As one that is missing."""
    (tmp_path / NAME).write_text(json.dumps({"launch": 1}))
    assert kept_failure(tmp_path, 1) is None
    assert how_it_ended(tmp_path, 3) == "it ended, not finished: killed, or its error is in the output of its command"
