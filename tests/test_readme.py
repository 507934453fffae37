"""The README's programs run as they are written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"<!-- runs in the tests -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
FINGERPRINT = re.compile(r"\b[0-9a-f]{64}\b")


def play(program: Path, directory: Path, *start: str) -> str:
    """Run a program in `directory` and return the one fingerprint that it prints."""
    done = subprocess.run(
        [*start, str(program)], cwd=directory, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    found = set(FINGERPRINT.findall(done.stdout))
    assert len(found) == 1, done.stdout
    return found.pop()


def test_the_readme_shows_two_programs_of_under_20_lines():
    """Both ways to train are in the README, each under 20 lines of code."""
    assert len(BLOCKS) == 2
    for block in BLOCKS:
        assert sum(bool(line.strip()) for line in block.splitlines()) < 20


@pytest.mark.parametrize(
    ("number", "launcher"),
    [
        (0, ["unisono", "run", "-n", "3"]),
        pytest.param(1, ["torch.distributed.run", "--nproc-per-node=2"], marks=pytest.mark.slow),
    ],
)
def test_readme_programs_give_one_fingerprint_however_they_are_started(number, launcher, tmp_path):
    """A README program prints the same fingerprint as `python file`, under `unisono run` and under torchrun."""
    program = tmp_path / "program.py"
    program.write_text(BLOCKS[number])
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    alone = play(program, tmp_path / "a", sys.executable)
    assert play(program, tmp_path / "b", sys.executable, "-m", *launcher) == alone
