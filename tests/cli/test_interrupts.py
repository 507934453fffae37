"""Ctrl-C at several instants, of real processes: what is told, the code, and that nobody is left behind."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# SIGINT may be ignored in us (a test run in the background), and would be in what we start.
START = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
START += "from unisono.cli.main import main; main()"
TRAIN = "train digits -n 2 --batch-size 16 --out run"


def session_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, ValueError):
        return None


def interrupt(folder, typed, sign):
    """Start a verb, press Ctrl-C when `sign` holds of what it has said and left; return code and what it said."""
    said, own = folder / "said", folder / "tmp"
    own.mkdir()
    with said.open("w") as error:
        verb = subprocess.Popen(
            [sys.executable, "-c", START, *shlex.split(typed)], cwd=folder, stdout=subprocess.DEVNULL, stderr=error,
            start_new_session=True, env={**os.environ, "TMPDIR": str(own)},
        )  # fmt: skip
    while not sign(folder, said.read_text()):
        assert verb.poll() is None, said.read_text()
        time.sleep(0.001)
    os.killpg(verb.pid, signal.SIGINT)  # as a terminal does: the workers get it, too
    code = verb.wait(200)
    assert [path for path in Path("/proc").glob("[0-9]*") if session_of(path.name) == verb.pid] == []
    assert list(own.iterdir()) == []
    return code, said.read_text().splitlines()


def has(name):
    return lambda folder, _: (folder / name).exists()


def told(text):
    return lambda _, said: text in said


@pytest.mark.parametrize("sign", [told("replicas on"), has("run/run.toml")], ids=["first line", "directory"])
def test_before_the_first_step(tmp_path, sign):
    """Nothing is saved yet: that is told, with the command."""
    code, lines = interrupt(tmp_path, TRAIN, sign)
    assert code == 130
    assert lines[-1] == (
        f"unisono train: interrupted. run holds no checkpoint yet. Again, from the beginning: unisono {TRAIN}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("sign", [has("run/ledger.jsonl"), told("train_loss")], ids=["within steps", "at an epoch"])
def test_in_the_midst(tmp_path, sign):
    """The step in progress is finished and saved (75), and the command that is told goes on where it stopped."""
    code, lines = interrupt(tmp_path, TRAIN, sign)
    assert code == 75
    assert " and saved." in lines[-2]
    assert lines[-1] == f"unisono train: go on with: unisono {TRAIN}"
    step = int(lines[-2].split("step ")[1].split(",")[0])
    assert any((tmp_path / "run" / "checkpoints").glob(f"step-{step:08}.*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "sign", "kept"),
    [
        ("verify digits -n 1,2", "[2/2]", "Nothing is kept of the runs so far. Again: "),
        ("bench scaling digits -n 1,2", "worker", "Nothing is kept of the measurement. Again: "),
        ("train digits -n 2", "replicas on", "Nothing is kept; --out DIR keeps runs. Again: "),
    ],
)
def test_what_keeps_nothing(tmp_path, typed, sign, kept):
    """Code 130, and the command that begins anew; no temporary file is left."""
    code, lines = interrupt(tmp_path, typed, told(sign))
    assert (code, lines[-1]) == (130, f"unisono {typed.split(' digits')[0]}: interrupted. {kept}unisono {typed}")
