"""`make bench` runs what is missing, goes on after a kill, and names what has failed."""

import importlib.util
import io
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GOOD = f"""
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {str(BENCHMARKS)!r})
import results
made = results.Result.of("x", [2.0], against=[3.0], peer="gloo", topic="Steps", what="a [step]", unit="ms",
                         bar=results.Bar(of="ratio", at_least=2))
results.write(Path(sys.argv[-1]) / f"{{Path(sys.argv[0]).stem}}.json", [replace(made, commit=COMMIT)])
"""
LOADED = f"""
import importlib.util, sys
from pathlib import Path
sys.path.insert(0, {str(BENCHMARKS)!r})
spec = importlib.util.spec_from_file_location("bench", {str(BENCHMARKS / "__main__.py")!r})
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)
"""


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    return subprocess.run(
        ["git", "-C", folder, *who, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """The driver, over a repository of its own with one commit."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("bench", BENCHMARKS / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "x.py").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "src")
    git(tmp_path, "commit", "-qm", "first")
    for place in (module, sys.modules["origin"]):
        monkeypatch.setattr(place, "ROOT", tmp_path)
    monkeypatch.setattr(module, "BUILD", tmp_path / "build")
    (tmp_path / "results").mkdir()
    return module


def entry(bench, folder: Path, name: str, body: str, **more):
    """Return a benchmark whose program is `body`."""
    (folder / f"{name}.py").write_text(body)
    return bench.Benchmark(name, str(folder / f"{name}.py"), 1, **more)


def good(bench, folder: Path, name: str = "good", commit: str | None = None, **more):
    return entry(bench, folder, name, f"COMMIT = {commit or git(folder, 'rev-parse', 'HEAD')!r}\n{GOOD}", **more)


def play(bench, folder: Path, table, *words: str) -> int:
    return bench.main([*words, "--results", str(folder / "results"), "--page", str(folder / "figures.md")], table)


def test_what_is_there_is_not_measured_again(bench, tmp_path, capsys):
    """Of the same src it is skipped, after a commit elsewhere too; not with --again, of another or a changed src."""
    table = [good(bench, tmp_path)]

    def said(*words: str) -> str:
        assert play(bench, tmp_path, table, *words) == 0
        return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("[1/1]"))

    assert "about 1 min" in said()
    assert "2 ms" in (tmp_path / "figures.md").read_text()
    git(tmp_path, "add", "results")
    git(tmp_path, "commit", "-qm", "results")
    assert "is there already" in said()
    assert "about 1 min" in said("--again")
    (tmp_path / "src" / "x.py").write_text("2")
    assert "about 1 min" in said()
    (tmp_path / "src" / "x.py").write_text("1")
    assert "is there already" in said()
    table = [good(bench, tmp_path, commit=git(tmp_path, "rev-parse", "HEAD") + "+")]
    said("--again")
    assert "about 1 min" in said(), "a record of a changed tree counts"


def test_one_that_fails_keeps_nobody(bench, tmp_path, capsys, monkeypatch):
    """It is named with its last lines, the next one runs, what cannot run says why, and the code is 1."""
    bad = entry(bench, tmp_path, "bad", "print('so far')\nraise SystemExit('no such link')")
    (tmp_path / "results" / "bad.tmp").write_text("[{")  # a half-written record is none
    monkeypatch.setitem(sys.modules["catalogue"].NEEDS, "moon", lambda: "needs the moon")
    away = entry(bench, tmp_path, "away", "", needs=("moon",))
    assert play(bench, tmp_path, [bad, away, good(bench, tmp_path)]) == 1
    told = capsys.readouterr()
    assert "so far\nno such link" in told.out
    assert "left out, needs the moon" in told.out
    assert "[3/3] good: done" in told.out
    assert "Steps | a [step] | 2 ms | gloo 3 ms: 1.5 times | at least 2 times | missed" in told.out  # no failure
    assert told.err == "FAILED: bad: no such link\n"


def test_killed_and_started_again(bench, tmp_path, capsys):
    """SIGKILL in the middle: what was finished stays, what was running ends with it and is measured the next time."""
    slow = f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    table = [good(bench, tmp_path), entry(bench, tmp_path, "slow", slow + "time.sleep(600)")]
    words = ["--results", str(tmp_path / "results"), "--page", str(tmp_path / "figures.md")]
    calls = ", ".join(f"bench.Benchmark({one.name!r}, {one.words!r}, 1)" for one in table)
    start = f"{LOADED}\nbench.ROOT = bench.BUILD = Path({str(tmp_path)!r})\nbench.main({words}, [{calls}])"
    process = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    running = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    while running.exists() and running.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < deadline, "the benchmark outlives the driver"
        time.sleep(0.02)
    table[1] = good(bench, tmp_path, "slow")
    assert play(bench, tmp_path, table) == 0
    told = capsys.readouterr().out
    assert "[1/2] good: is there already" in told
    assert "[2/2] slow: done" in told


def test_an_unknown_name(bench, tmp_path, capsys):
    """One line and 2."""
    with pytest.raises(SystemExit) as caught:
        play(bench, tmp_path, [good(bench, tmp_path)], "--only", "good,nix")
    assert caught.value.code == 2
    assert capsys.readouterr().err == "bench: expected --only to name benchmarks, got 'nix'. Hint: --list names them\n"


def test_what_is_chosen(bench, tmp_path):
    """The short run leaves out what has no short form; what takes hours wants to be named."""
    table = [
        good(bench, tmp_path),
        good(bench, tmp_path, "short", quick=""),
        good(bench, tmp_path, "long", by_name=True),
    ]

    def names(*words: str) -> list[str]:
        return [one.name for one in bench.chosen(bench.arguments(words, table), table)]

    assert names() == ["good", "short"]
    assert names("--quick") == ["short"]
    assert names("--only", "long,good") == ["good", "long"]


def test_every_program_is_in_the_table(bench, monkeypatch):
    """A benchmark that can be run is run by `make bench`; names are unique; what is recorded is what is looked for."""
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent / "tests" / "benchmarks"))
    from test_quick import OPTIONS

    assert {Path(one.script).stem for one in bench.TABLE} == set(OPTIONS)
    assert len({one.name for one in bench.TABLE}) == len(bench.TABLE)
    whole = sum(one.minutes for one in bench.TABLE if not one.by_name)
    quick = sum(one.quick_minutes for one in bench.TABLE if not one.by_name and one.quick is not None)
    assert whole <= 200, f"said to take 3 hours, now {whole} minutes"
    assert quick <= 33, f"said to take 30 minutes, now {quick}"


def test_a_table_of_80_columns(bench, tmp_path):
    """On a terminal all figures fit, brackets included."""
    assert play(bench, tmp_path, [good(bench, tmp_path)]) == 0
    out = io.StringIO()
    bench.show(tmp_path / "results", Console(file=out, force_terminal=True, width=200, color_system=None))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) == 80
    assert any("a [step]" in line and "1.5 gloo" in line and ">= 2 x" in line and "missed" in line for line in lines)
