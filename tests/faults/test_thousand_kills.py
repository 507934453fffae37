"""The long run of kills (`benchmarks/thousand_kills.py`) in small: it counts, goes on, and sees what is broken."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "thousand_kills.py"


@pytest.fixture
def short_path():
    """A directory in which loader processes have room for the paths of their sockets."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as place:
        yield Path(place)


def play(place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Processes of the first stretch are forked, as in the long run; those of the second are started as users do."""
    command = [sys.executable, str(SCRIPT), str(place), "--per-stretch", "4", "--exec-every", "2", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_row_6_many_kills(short_path):
    """Kills at moments that a seed decides: all stretches equal the undisturbed run; started again, it goes on."""
    place = short_path / "kills"
    first = play(place, "--kills", "4")
    assert first.returncode == 0, first.stderr
    again = play(place, "--kills", "8")
    assert again.returncode == 0, again.stderr
    stretches, kills = rows(place / "stretches.jsonl"), rows(place / "kills.jsonl")
    assert sum(row["landed"] for row in stretches) >= 8
    assert sum(row["landed"] for row in kills) == sum(row["landed"] for row in stretches)
    assert all(row["equal"] and row["seen"] == row["reference"] for row in stretches)
    assert [row["stretch"] for row in stretches] == sorted({row["stretch"] for row in kills})


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_broken_restore_is_seen(short_path):
    """Control: where a resume forgets the optimizer's moments, weights and optimizer differ, and the script says so."""
    done = play(short_path / "kills", "--kills", "4", "--broken-restore")
    assert done.returncode == 1, done.stderr
    last = rows(short_path / "kills" / "stretches.jsonl")[-1]
    assert not last["equal"]
    assert {"weights", "optimizer"} <= set(last["differs"])
