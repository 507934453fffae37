"""What pages write into one folder: no page's run, program or report takes the place of another page's."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from test_readme import FINGERPRINT, PAGES, ROOT, play

FIRST_HOUR = ["README.md", "docs/quickstart.md", "docs/own-model.md", "docs/notebook.md"]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
SAVED = re.compile(r"[Ss]aved?(?: this| it)? as `(\w+\.py)`")
IN_PYTHON = re.compile(r"""\bout(?:: str )?= ?"([\w./-]+)"|\blaunch\(\w+, (?:[\w"]+, )?"(\w+/[\w./-]+)\"""")
EPOCHS = re.compile(r"\bepochs=\d+")
#: what is started: a program by any command, or a whole command
SCRIPT = re.compile(r"[\w-]+\.py|^(?!.*\.py).*$")
#: what trains long, in directories of its own, and has tests of its own
ELSEWHERE = ("unisono verify", "unisono chaos")
#: options of a command that change no result; each takes a value
LAUNCHED = {"-n", "--nnodes", "--node-rank", "--rdzv-endpoint", "--max-restarts", "--live"}


def lines(block: str) -> list[str]:
    """Return the command lines of a console block, continued lines joined, without prompts and comments."""
    joined = block.replace("\\\n", " ").splitlines()
    prompt = re.compile(r"^(?:host\d)?\$ ")
    typed = [line for line in joined if prompt.match(line)] or joined
    return [prompt.sub("", line).partition(" #")[0].strip() for line in typed if line.strip()]


def written_by(command: str) -> tuple[str, str] | None:
    """Return the directory or file that a command line makes, and what is trained or drawn there."""
    try:
        words = shlex.split(command)
    except ValueError:  # an ellipsis, a quotation mark: no command to copy
        return None
    places = [number for number, word in enumerate(words) if word in ("--out", "-o")]
    if words[:2] == ["unisono", "report"] and not places:
        return "report.html", command
    if "unisono" not in words or not places or places[0] + 1 == len(words):
        return None
    out = words[places[0] + 1]
    del words[places[0] : places[0] + 2]
    for option in LAUNCHED & {*words}:
        place = words.index(option)
        del words[place : place + 2]
    script = next((word for word in words if word.endswith(".py")), None)
    return out, " ".join(words[words.index(script) :] if script else words)


def claims(text: str) -> Iterator[tuple[str, str]]:
    """Return what a page's programs and commands write, each with what it is of."""
    fenced = {}
    for kind, block in FENCE.findall(text):
        for line in lines(block) if kind in ("console", "bash") else re.findall(r"^!(unisono .*)", block, re.M):
            if (found := written_by(line)) is not None:
                yield found
        if kind in ("python", "ipython"):
            fenced |= {out: block for pair in IN_PYTHON.findall(block) for out in pair if out}
            yield from ((out, block) for pair in IN_PYTHON.findall(block) for out in pair if out)
    for code in re.findall(r"`([^`\n]+)`", FENCE.sub("", text)):
        for out in (out for pair in IN_PYTHON.findall(code) for out in pair if out):
            if out not in fenced:  # else it quotes a line of the page's own program
                yield out, code
    for name in SAVED.findall(text):
        yield name, text


def shared(pages: dict[str, str]) -> dict[str, list[str]]:
    """Return the places that hold different things, with the pages that write them."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for page, text in pages.items():
        for place, what in claims(text):
            found[place].setdefault(what, page)
    return {place: sorted(what.values()) for place, what in found.items() if len(what) > 1}


def followed(text: str) -> Iterator[tuple[str, str]]:
    """Return what a reader of a page does, in order: ("save NAME", program), ("type", command), ("cell", code)."""
    before = 0
    for block in FENCE.finditer(text):
        kind, code = block.groups()
        if kind == "python" and (saved := SAVED.findall(text[before : block.start()])):
            yield f"save {saved[-1]}", code
        if kind == "console":
            yield from (("type", line) for line in lines(code) if re.match(r"unisono|python|torchrun", line))
        if kind == "ipython":
            yield "cell", code
        before = block.end()


def test_no_two_programs_of_the_pages_share_a_place():
    """Run directories, programs that a reader saves, pages that `report` writes; the examples that pages show, too."""
    pages = {os.fspath(page.relative_to(ROOT)): page.read_text() for page in PAGES}
    pages |= {example.name: f"```python\n{example.read_text()}```" for example in ROOT.glob("examples/*.py")}
    assert shared(pages) == {}, "give one of them another out= (--out) or file name"
    assert sum(1 for text in pages.values() for _ in claims(text)) > 40


def test_a_shared_place_is_found():
    """The control: of two programs, of two recipes, of a program and a line of text, of two reports."""
    program = '```python\nrun = unisono.Run(seed={}, out="runs/a")\n```\n'
    train = "```console\n$ unisono train digits -n {} --seed {} --out runs/d\n```\n"
    assert shared({"a": program.format(0), "b": program.format(1)}) == {"runs/a": ["a", "b"]}
    assert shared({"a": program.format(0), "b": program.format(0)}) == {}
    assert shared({"a": train.format(1, 0), "b": train.format(2, 0)}) == {}
    assert shared({"a": train.format(1, 0), "b": train.format(1, 1)}) == {"runs/d": ["a", "b"]}
    assert shared({"a": program.format(0), "b": '`Run(out="runs/a")`'}) == {"runs/a": ["a", "b"]}
    cell = '```ipython\nunisono.launch(train, "runs/a")\n!unisono report runs/b --out r.html\n```\n'
    report = "```console\nunisono report runs/c --out r.html   # curves\n```\n"
    assert shared({"a": program.format(0), "b": cell, "c": report}) == {"runs/a": ["a", "b"], "r.html": ["b", "c"]}
    assert shared({"a": "Save it as `t.py`: 1", "b": "saved as `t.py`: 2"}) == {"t.py": ["a", "b"]}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_first_hour_in_one_folder(tmp_path):
    """README, quickstart, own model and notebook, followed one after the other: each command ends well.

    Each program and recipe is started once, in the first way that a page tells, and trains one epoch. Then torchrun
    trains the quickstart's program again, once its directory is removed, and finds the fingerprint of `python`.
    """
    nbclient, nbformat = (pytest.importorskip(name, reason="needs nbclient") for name in ("nbclient", "nbformat"))
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    path = os.pathsep.join([os.fspath(Path(sys.executable).parent), os.environ["PATH"]])
    printed, cells = {}, []
    for what, said in (step for page in FIRST_HOUR for step in followed((ROOT / page).read_text())):
        if what == "cell":
            cells.append(nbformat.v4.new_code_cell(EPOCHS.sub("epochs=1", said)))
        elif what.startswith("save "):
            (tmp_path / what.removeprefix("save ")).write_text(EPOCHS.sub("epochs=1", said))
        elif (name := SCRIPT.findall(said)[0]) not in printed and not said.startswith(ELSEWHERE):
            run = said + " --epochs 1" * said.startswith("unisono train")
            done = subprocess.run(
                run, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path},
                capture_output=True, text=True, timeout=200, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{run}\n{done.stdout}{done.stderr}"
            printed[name] = {*FINGERPRINT.findall(done.stdout)}
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert {"train.py", "first.py", "mine.py"} < {*printed}
    made = {folder.name: len((folder / "ledger.jsonl").read_text().splitlines()) for folder in tmp_path.glob("runs/*")}
    assert made == dict.fromkeys(("digits", "mine", "first", "small-net", "cell"), 23)  # each trained by itself
    shutil.rmtree(tmp_path / "runs" / "first")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    assert {play(tmp_path / "first.py", tmp_path, *torchrun)} == printed["first.py"]
