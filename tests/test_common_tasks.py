"""The lines of docs/common-tasks.md run, each behind that page's first block, and the first programs of other pages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
MARK = "<!-- runs as it stands -->\n"
BLOCK = r"```python\n(.*?)^```"
SETUP, *TASKS = re.findall(f"^{BLOCK}", (DOCS / "common-tasks.md").read_text(), re.M | re.S)
for page in sorted(DOCS.glob("*.md")):
    TASKS += re.findall(f"^{MARK}{BLOCK}", page.read_text(), re.M | re.S)
SETUP = SETUP.replace("data.train_images, data.train_labels", "data.train_images[:640], data.train_labels[:640]")
LOOP = """
for batch in run.steps(run.loader(train_set, batch_size=64), epochs=1):
    run.step(batch, loss)
"""
PLAY = """
import os, runpy, sys, warnings

warnings.simplefilter("error", UserWarning)
for path in sys.argv[1:]:
    if makes_run := "\\nrun = " in open(path).read():  # the others use what the one before has left
        os.makedirs(f"{path}.d")
        os.chdir(f"{path}.d")
    print(path, flush=True)
    found = runpy.run_path(path)
    if makes_run:
        assert found["run"].result()["steps"] > 0
        found["run"].close()
"""


def program(task: str) -> str:
    """Return a task's lines as a whole program: where they do not train, with the loop that they leave out."""
    if task.startswith("import"):
        return task
    if "run = " not in task or "in run.steps" in task or ".fit(" in task:
        return SETUP + task
    prepare = "" if "run.prepare" in task else "model, optimizer = run.prepare(*build())"
    return f"{SETUP}{task}{prepare}{LOOP}"


@pytest.mark.slow
def test_the_lines_of_every_task_run(tmp_path):
    """In one process, without a warning; those that make a run train."""
    paths = [tmp_path / f"task_{number:02}.py" for number in range(len(TASKS))]
    for path, task in zip(paths, TASKS, strict=True):
        path.write_text(program(task))
    done = subprocess.run(
        [sys.executable, "-c", PLAY, *map(str, paths)],
        cwd=tmp_path, capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
