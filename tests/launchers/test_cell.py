"""A launch in a notebook: the bar, a worker's error, interrupt and restart, in a real kernel of Jupyter."""

import contextlib
import linecache
import os
import re
import time
from pathlib import Path

import pytest

from unisono.errors import WorkerFailed
from unisono.launchers.cell import CellBar, cell_bar, curve, once, with_lines
from unisono.system.heartbeat import Reading

DEFINED = """
import os, time
from pathlib import Path
import torch
from torch import nn
from torch.nn import functional as F
import unisono

def train(out, steps, pause=0.0, wrong=None):
    run = unisono.Run(seed=0, replicas=2, out=out, checkpoint_every=5)
    Path(out, f"pid-{run.world.rank}").write_text(str(os.getpid()))
    model = nn.Linear(4, 2)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = unisono.ArrayDataset(torch.randn(64, 4), torch.arange(64) % 2)
    for batch in run.steps(run.loader(data, batch_size=8), max_steps=steps):
        if batch.step == wrong and run.world.rank == 1:
            1 / 0
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        time.sleep(pause)
"""
STEP = re.compile(r"step ([\d,]+) of ([\d,]+)")


def test_what_is_drawn():
    """Steps, loss, speed, time left, what each rank does; and how it ended."""
    bar = CellBar(print)
    now = bar._began
    assert "2 workers" in bar.html({0: Reading(), 1: Reading()}, now)
    first = {0: Reading(done=10, last=110, loss=0.5, phase="compute"), 1: Reading(done=9, last=110, phase="reduce")}
    bar.html(first, now + 1)
    shown = bar.html(first | {0: Reading(done=60, last=110, loss=0.25, phase="<b>")}, now + 11)
    for words in (
        "step 60 of 110",
        "loss 0.2500",
        "5.0 steps/s",
        "10 s left",
        "rank 1: reduce",
        "rank 0: &lt;b&gt;",
    ):
        assert words in shown
    assert 'aria-valuenow="55%"' in shown
    ended = bar.html(first, now + 12.5, "stopped after step 9, and saved")
    assert "stopped after step 9, and saved \N{MIDDLE DOT} 12.5 s" in ended
    assert "rank 1" not in ended
    assert "and 4 more" in bar.html(dict.fromkeys(range(20), Reading()), now)


def test_the_loss_curve():
    """Drawn from the third loss on, between the least and the greatest; long runs are thinned, their ends stay."""
    assert curve([(1, 2.0), (2, 1.0)]) == ""
    drawn = curve([(10, 3.0), (20, 1.0), (30, 2.0)])
    assert 'points="0.0,0.0 300.0,60.0 600.0,30.0"' in drawn
    assert "loss of steps 10 to 30" in drawn and "<div>3</div><div>1</div>" in drawn
    assert "nan" not in curve([(1, 1.0), (2, 1.0), (3, 1.0)])
    bar = CellBar(print)
    for step in range(1, 2001):
        bar.html({0: Reading(done=step, loss=1 / step)}, bar._began + step)
        bar.html({0: Reading(done=step, loss=float("nan"))}, bar._began + step)  # not finite, and no new step
    assert 200 <= len(bar._losses) <= 400
    assert (bar._losses[0], bar._losses[-1]) == ((1, 1.0), (2000, 1 / 2000))
    assert "<svg" in bar.html({}, bar._began + 2001, "done")


def test_nothing_is_drawn_elsewhere(capsys):
    """In a program and a terminal there is no cell: the readings are not even looked at."""

    def fails():
        raise AssertionError("was asked")

    bar = cell_bar()
    bar.look(fails)
    bar.end(fails, "done")
    assert capsys.readouterr() == ("", "")


def test_lines_of_cells():
    """A frame without its line of source gets it, where this process knows it; others stay."""
    lines = ["def f():\n", "    return 1 / 0\n"]
    linecache.cache["/tmp/a-cell.py"] = (0, None, lines, "/tmp/a-cell.py")
    text = '  File "{}", line 2, in f\n{}ZeroDivisionError: division by zero'
    assert with_lines(text.format("/tmp/a-cell.py", "")) == text.format("/tmp/a-cell.py", "    return 1 / 0\n")
    for known in (text.format("/tmp/a-cell.py", "    return 2\n"), text.format("/nowhere.py", "")):
        assert with_lines(known) == known


def test_a_cell_has_its_name():
    """In place of the file that the kernel calls it by; other files stay."""
    text = '  File "/tmp/ipykernel_7/3.py", line 2, in f\n    x\n  File "/home/me/a.py", line 3, in g\n'
    named = with_lines(text, lambda file: "Cell In[3]" if "ipykernel" in file else "")
    assert named == '  Cell In[3], line 2, in f\n    x\n  File "/home/me/a.py", line 3, in g\n'


def test_a_refused_run_leaves_no_bar():
    """An error before the first step is done: nothing is drawn; the control has done one."""
    for done, is_drawn in ((0, False), (1, True)):
        shown = []
        error = WorkerFailed("x", rank=0, exit_code=1)
        CellBar(shown.append).end(lambda done=done: {0: Reading(done=done)}, "failed", error)
        assert bool(shown[-1]) is is_drawn


def test_a_workers_error_is_told_once():
    """The traceback, and below it which rank failed with what; what has no traceback, or another end, stays."""
    first, place = "WorkerFailed: rank 1 of 2 failed with ValueError: bad", "Traceback ...:\n  File x\n    y"
    assert once(f"{first}\n\n{place}\nValueError: bad") == f"{place}\n{first}"
    for text in (first, f"{first}\n\n{place}\nof two lines", f"{first}\n\nValueError: bad"):
        assert once(text) == text


class Kernel:
    """A kernel of Jupyter, and what its cells show."""

    def __init__(self, folder: Path) -> None:
        manager = pytest.importorskip("jupyter_client.manager", reason="needs nbclient and ipykernel")
        pytest.importorskip("ipykernel")
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        self.manager, self.client = manager.start_new_kernel(cwd=str(folder), env=environment, startup_timeout=120)
        self.folder = folder

    def begin(self, code):
        return self.client.execute(code)

    def messages(self, request):
        """Yield (kind, content) of what a cell shows, until it is done."""
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return
            yield kind, content

    def run(self, code):
        return list(self.messages(self.begin(code)))

    def until_step(self, request, step):
        """Wait until a bar has shown this step."""
        for _, content in self.messages(request):
            found = STEP.search(content.get("data", {}).get("text/html", ""))
            if found and int(found[1]) >= step:
                return
        raise AssertionError(f"the cell ended before step {step}")

    def pids(self, out):
        return [int((self.folder / out / f"pid-{rank}").read_text()) for rank in range(2)]

    def close(self):
        with contextlib.suppress(RuntimeError):
            self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path):
    kernel = Kernel(tmp_path)
    assert [kind for kind, _ in kernel.run(DEFINED)] == ["status", "execute_input"]
    yield kernel
    kernel.close()


def html(shown):
    return [content["data"]["text/html"] for kind, content in shown if kind in ("display_data", "update_display_data")]


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow
def test_a_bar_an_error_and_a_result(kernel):
    """The bar moves; a worker's error is shown with the cell's line and without the launcher's; results are tables."""
    shown = kernel.run("unisono.launch(train, 'good', 30, 0.1, workers=2, replicas=2)")
    steps = [int(found[1]) for drawn in html(shown) if (found := STEP.search(drawn))]
    assert steps == sorted(steps)
    assert len(set(steps)) >= 3
    assert "step 30 of 30" in html(shown)[-1]
    assert "done" in html(shown)[-1] and "<polyline" in html(shown)[-1]

    shown = kernel.run("unisono.launch(train, 'bad', 30, wrong=3, workers=2, replicas=2)")
    (error,) = [content for kind, content in shown if kind == "error"]
    told = "\n".join(error["traceback"])
    assert error["ename"] == "WorkerFailed"
    assert "ZeroDivisionError" in told
    assert "1 / 0" in told and "Cell In[1], line" in told
    assert "launchers/" not in told
    assert "failed" in html(shown)[-1]

    shown = kernel.run("train('here', 20, 0.05)")  # in this process, without a launch
    assert "1 worker" in html(shown)[-1] and "step 20 of 20" in html(shown)[-1] and "done" in html(shown)[-1]
    assert len({STEP.search(drawn)[1] for drawn in html(shown) if STEP.search(drawn)}) >= 2

    (table,) = [content for kind, content in kernel.run("unisono.Result.read('good')") if kind == "execute_result"]
    assert "fingerprint</th>" in table["data"]["text/html"]
    (table,) = [content for kind, content in kernel.run("unisono.Run(seed=7, replicas=3)") if kind == "execute_result"]
    assert re.search(r"seed</th><td[^>]*>7<", table["data"]["text/html"])


@pytest.mark.slow
def test_interrupt_and_restart(kernel):
    """An interrupt stops between two steps and saves; a restart ends the workers; the same cell goes on after both."""
    call = "unisono.launch(train, 'run', {}, {}, workers=2, replicas=2)"
    request = kernel.begin(call.format(2000, 0.05))
    kernel.until_step(request, 3)
    kernel.manager.interrupt_kernel()
    shown = list(kernel.messages(request))
    (error,) = [content for kind, content in shown if kind == "error"]
    assert error["ename"] == "RunStopped"
    stopped = int(re.search(r"stopped after step (\d+), and saved", html(shown)[-1])[1])
    assert stopped >= 3
    assert all(map(is_gone, kernel.pids("run")))

    request = kernel.begin(call.format(2000, 0.05))
    kernel.until_step(request, stopped + 6)  # past another checkpoint
    pids = kernel.pids("run")
    assert not any(map(is_gone, pids))  # the control
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=120)
    deadline = time.monotonic() + 60
    while not all(map(is_gone, pids)):
        assert time.monotonic() < deadline, "workers have outlived their kernel"
        time.sleep(0.05)

    kernel.run(DEFINED)
    shown = kernel.run(call.format(stopped + 40, 0.0))
    assert f"step {stopped + 40} of {stopped + 40}" in html(shown)[-1]
    (told,) = [
        content
        for kind, content in kernel.run("print(unisono.Result.read('run')['resumed_from_step'])")
        if kind == "stream"
    ]
    assert int(told["text"]) > stopped
