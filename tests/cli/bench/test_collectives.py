"""``unisono bench collectives``: measured rows, pictures, schedules explained; wrong usage starts nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.test_train import environment
from report.drawn import tree_of
from unisono.cli.bench.collectives import describe_plan, timings_table
from unisono.cli.main import unisono
from unisono.collectives.schedules import SCHEDULES, Move, Schedule, plan
from unisono.experiments.collectives import COLLECTIVES

OVER = {**{name: {"shm", "gloo"} for name in COLLECTIVES}, "memcpy": {"memory"}}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "unisono", "bench", "collectives", *arguments],
        env=environment(), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def asked(*arguments: str):
    """Ask in this process: for what starts nothing."""
    return CliRunner().invoke(unisono, ["bench", "collectives", *arguments])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One small measurement with everything: what was printed, and the picture."""
    picture = tmp_path_factory.mktemp("bench") / "timings.svg"
    sizes = ["--ranks", "2,3", "--sizes", "4KB,100000,1B", "--repeat", "3"]
    return bench(*sizes, "--json", "--picture", str(picture)), picture


@pytest.mark.slow
def test_json_is_one_object_with_a_row_for_each_case(measured):
    """Every collective over every transport at every size and number of ranks, with ordered, positive times."""
    done, _ = measured
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    told = json.loads(done.stdout)
    assert set(told) == {"cores", "torch", "repeat", "plans", "rows"}
    assert set(told["plans"]) == {"2", "3"}
    assert all(plan["piece_bytes"] >= 4096 for plan in told["plans"].values())
    assert told["repeat"] == 3
    sizes = {2: (128, 4096, 100096), 3: (192, 4224, 100032)}  # rounded up to 64 bytes a rank
    found = [(row["ranks"], row["collective"], row["bytes"], row["transport"]) for row in told["rows"]]
    assert sorted(found) == sorted(
        (ranks, name, size, transport)
        for ranks, lengths in sizes.items()
        for name, transports in OVER.items()
        for size in (lengths if name != "barrier" else (0,))
        for transport in transports
    )
    for row in told["rows"]:
        assert 0 < row["q1_s"] <= row["median_s"] <= row["q3_s"] < 60
        assert row["calls"] >= 1
        if row["bytes"]:
            assert row["bytes_per_s"] == pytest.approx(row["bytes"] / row["median_s"])
        else:
            assert row["bytes_per_s"] is None


@pytest.mark.slow
def test_the_picture_is_drawn(measured):
    """--picture draws two worlds with a chart for each collective; standard error tells what is going on."""
    done, picture = measured
    assert len(list(tree_of(picture).iter("svg"))[1:]) == 2 * len(COLLECTIVES)
    assert "measuring 2 ranks" in done.stderr
    assert "measuring 3 ranks" in done.stderr


@pytest.mark.slow
def test_the_table_fits_80_columns(measured):
    """For people: a line for each row, in 80 columns, with the ratio to torch's own."""
    rows = json.loads(measured[0].stdout)["rows"]
    lines = timings_table(rows)
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line[:5].strip().isdigit()]) == len(rows)
    gloo = [line for line in lines if " gloo " in line and "tree_all_reduce" not in line]
    assert gloo
    assert all(line.endswith(" 1.00x") for line in gloo)
    assert sum("tree_all_reduce" in line and line.endswith("x") for line in lines) >= 12
    assert not any(line != line.rstrip() for line in lines)


def test_the_plan_in_words():
    """How reductions are cut on this host."""
    plan = {"whole_bytes": 32 << 10, "piece_bytes": 2 << 20}
    said = describe_plan(4, plan)
    assert said == "plan for 4 ranks: each rank adds everything up to 32 KB, above it its share; pieces of 2 MB"
    assert "every rank adds everything; " in describe_plan(2, {**plan, "whole_bytes": 1 << 40})
    assert "each rank adds its share; " in describe_plan(2, {**plan, "whole_bytes": 0})
    assert "over gloo" in describe_plan(2, None)


@pytest.mark.parametrize("name", SCHEDULES)
def test_explained_in_words(name):
    """Each schedule is explained: what it is, each round, and what it costs, in 80 columns."""
    result = asked("--explain", name, "-n", "3")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("round ") for line in lines) == len(plan(name, 3).rounds)
    assert "each rank sends, of a buffer of S bytes:" in result.stdout
    assert "`" not in result.stdout
    assert lines[0][0].isupper()


def test_explained_for_machines():
    """With --json the schedule can be built again from what is printed."""
    told = json.loads(asked("--explain", "ring", "--json").stdout)
    again = Schedule(
        name=told["name"],
        world_size=told["ranks"],
        num_chunks=told["chunks"],
        holds=tuple(range(held[0], held[-1] + 1) for held in told["holds"]),
        rounds=tuple(tuple(Move(**move) for move in moves) for moves in told["rounds"]),
    )
    assert again == plan("ring", 4)
    assert told["sent"] == [6] * 4


@pytest.mark.parametrize("option", ["--picture", "--png"])
def test_explained_as_a_picture(tmp_path, option):
    """--picture (or its old name, --png) draws the schedule beside the words; nothing but the picture is written."""
    result = asked("--explain", "naive-ring", "-n", "3", option, str(tmp_path / "ring.svg"))
    assert result.exit_code == 0
    assert "round 2" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["ring.svg"]
    assert tree_of(tmp_path / "ring.svg").get("aria-label") == "naive-ring: 3 ranks, 2 rounds"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--explain", "rnig"], "did you mean 'ring'?"),
        (["--explain", "ring", "--repeat", "2"], "--explain measures nothing"),
        (["--explain", "ring", "--sizes", "4KB"], "--explain measures nothing"),
        (["--explain", "ring", "-n", "9", "--picture", "x.svg"], "at most 8 ranks in a picture"),
        (["--explain", "ring", "-n", "0"], "--workers as a whole number of ranks from 1 to 256"),
        (["--sizes", "many"], "expected --sizes such as 4KB"),
        (["--ranks", "1"], "expected --workers such as 2,4"),
        (["--repeat", "0"], "--repeat as a whole number from 1"),
        (["--picture", "no/such/directory/x.svg"], "Hint: make its directory"),
        (["--png", "timings.png"], "expected --picture FILE.svg, got 'timings.png'"),
        (["--size", "4KB"], "--sizes"),
        (["--collectives", "all_redcue"], "did you mean 'all_reduce'?"),
    ],
)
def test_wrong_usage_is_code_2_and_starts_nothing(arguments, message, tmp_path, monkeypatch):
    """Everything is checked first; the message says what to change, and no file is left."""
    monkeypatch.chdir(tmp_path)
    result = asked(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert not list(Path.cwd().iterdir())


def test_explaining_loads_no_torch():
    """A schedule is explained without torch, NumPy or matplotlib."""
    program = """
import sys
from unisono.cli.main import unisono
try:
    unisono(["bench", "collectives", "--explain", "ring"], standalone_mode=False)
except SystemExit as end:
    print(end.code, [name for name in ("torch", "numpy", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("0 []\n"), done.stderr
