"""The records of the benchmarks fit their schema, and docs/figures.md is what they give."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
FILES = sorted((BENCHMARKS / "results").glob("*.json"))


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import results

    return results


def check(*options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "figures.py"), "--check", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_page_is_what_the_records_give():
    """`figures.py --check` passes as committed."""
    done = check()
    assert done.returncode == 0, done.stderr


def test_a_changed_figure_is_noticed(tmp_path):
    """Control: one record with another figure, and the page is refused with the command that mends it."""
    for path in FILES:
        (tmp_path / path.name).write_text(path.read_text())
    path = tmp_path / "restart_time.json"
    path.write_text(path.read_text().replace('"median": 2.9', '"median": 2.8'))
    done = check("--results", tmp_path)
    assert done.returncode == 1
    assert "Hint: make figures" in done.stderr


def test_what_matters_most_stands_first(results, monkeypatch):
    """A table of a few rows, each with the verdict of its records, before the tables of all figures."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import figures

    first, _, others = figures.page_of(results.RESULTS).partition("## All figures")
    rows = [line for line in first.splitlines() if line.startswith("| ")][1:]
    assert 10 <= len(rows) <= 20
    assert any("by 4 of 4" in row for row in rows)
    good, bad = (results.validate(record_of(results, bar={"of": "ratio", "at_least": bar, "at_most": None},
        verdict=verdict), "x") for bar, verdict in ((2, "met"), (4, "missed")))  # fmt: skip
    assert figures.answer("q", "a", [good])[2] == "met"
    assert figures.answer("q", "a", [good, bad])[2] == "**missed** by 1 of 2"
    assert others.index("**missed**") < others.index("| met |")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_record_fits(path, results):
    """Fields, types, medians and verdicts are right; no record is of a quick look."""
    found = results.read(path)
    assert found
    assert not any("--quick" in result.command for result in found)


GOOD = {"topic": "Steps", "what": "a step", "unit": "ms", "bar": None, "command": "python benchmarks/x.py"}


def record_of(results, **changes):
    bar = results.Bar(of="ratio", at_least=2)
    made = results.Result.of("x", [3.0, 1.0, 2.0], against=[9.0, 3.0, 5.0], peer="gloo", **{**GOOD, "bar": bar})
    return {**asdict(made), **changes}


def test_a_run_makes_a_record(results, tmp_path):
    """Median, quartiles and verdict come from the samples, the ratio from pairs; a new run replaces the old record."""
    made = results.validate(record_of(results, settings={"link": "1 Gbit/s", "hosts": 2}), "x.json")
    assert (made.median, made.quartiles, made.peer_median, made.ratio, made.verdict) == (2, [1.5, 2.5], 5, 3, "met")
    assert made.ratio_interval == [2.5, 3]
    path = tmp_path / "x.json"
    results.write(path, [made, results.Result.of("y", [1.0], **GOOD)])
    results.write(path, [results.Result.of("x", [7.0], **GOOD)])
    assert [(result.name, result.median) for result in results.read(path)] == [("x", 7), ("y", 1)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verdict": "missed"}, "the verdict 'met'"),
        ({"median": 2.5}, "median of the samples"),
        ({"quartiles": [1.0, 2.0]}, "quartiles of the samples"),
        ({"samples": []}, "samples"),
        ({"samples": ["2"]}, "samples"),
        ({"median": float("nan")}, "median"),
        ({"source": "a friend"}, "source"),
        ({"peer": None}, "peer"),
        ({"ratio_interval": [3.5, 4.0]}, "interval"),
        ({"ratio_interval": [3.0]}, "interval"),
        ({"bar": {"of": "ratio", "at_least": 1, "at_most": 2}}, "bar"),
        ({"bar": {"of": "ratio"}}, "bar"),
        ({"date": "yesterday"}, "day"),
        ({"commit": "main"}, "commit"),
        ({"command": "python /home/me/x.py"}, "command"),
        ({"load": []}, "load"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_record_is_refused(results, changes, said):
    """Control: each slip is named, with the file and the record."""
    with pytest.raises(results.ResultError, match=said) as caught:
        results.validate(record_of(results, **changes), "x.json")
    assert str(caught.value).startswith("x.json: x")


@pytest.mark.parametrize(("count", "cut"), [(2, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (20, 5), (2000, 955)])
def test_the_interval_holds_the_median(count, cut, results):
    """As many are left out at each end as the sign test allows with 95 %; one value has no interval."""
    values = [float(value) for value in range(count)]
    assert results.interval_of(values[::-1]) == [cut, count - 1 - cut]
    assert results.interval_of([1.0]) is None


def test_a_verdict_that_is_not_clear_is_said(results, monkeypatch):
    """Where the bar lies within the interval the page says so, and only there."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import figures

    verdicts = [
        figures.verdict(
            results.validate(record_of(results, bar={"of": "ratio", "at_least": bar, "at_most": None}), "x")
        )
        for bar in (2, 2.9)
    ]
    assert verdicts == ["met", "met, not clearly"]


def test_a_broken_file_is_refused(results, tmp_path):
    """What is no JSON, no list, or has a name twice."""
    path = tmp_path / "x.json"
    record = record_of(results)
    for text in ("{", "{}", json.dumps([record, record])):
        path.write_text(text)
        with pytest.raises(results.ResultError, match=r"x\.json"):
            results.read(path)


def test_a_command_names_no_place(results):
    """Absolute paths become DIR and FILE, and where the record goes is left out."""
    said = results.command_line(["/a/x.py", "--data", "/tmp", "--out", "/tmp/b", "--other=/etc/passwd", "-n", "2"])
    assert said == "python benchmarks/x.py --data DIR --other=FILE -n 2"
