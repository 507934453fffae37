"""Traces of several ranks become one: one time line, a process for each rank, arrows that stay apart."""

import json

import pytest

from unisono.observe.trace import join_traces

BASE = 1_795_000_000_000_000_000


def part(path, base_ns, events):
    path.write_text(json.dumps({"baseTimeNanoseconds": base_ns, "traceEvents": events}))
    return path


def op(name, ts, *, pid=77, tid=77, **more):
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": 5.0, **more}


def step(began_ns, ended_ns):
    return {"name": "step 3", "began_ns": began_ns, "ended_ns": ended_ns, "args": {"step": 3}}


@pytest.fixture
def joined(tmp_path):
    """Return the trace of two ranks that began their files 1 ms apart, of equal process numbers."""
    head = {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "args": {"name": "python"}, "ts": 0.0}
    parts = [
        part(tmp_path / "0", BASE, [head, op("first", 2000.0), {**op("arrow", 2001.0), "ph": "s", "id": 4}]),
        part(tmp_path / "1", BASE + 1_000_000, [
            op("second", 1100.0), op("kernel", 1200.0, pid=0, tid=7), {**op("arrow", 1100.0), "ph": "s", "id": 4},
            {"ph": "i", "name": "end", "pid": "", "tid": "", "ts": 1300.0},
        ]),
    ]  # fmt: skip
    steps = [[step(BASE + 1_900_000, BASE + 2_500_000)], [step(BASE + 2_000_000, BASE + 2_400_000)]]
    join_traces(parts, steps, tmp_path / "all.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "all.json"]
    return json.loads((tmp_path / "all.json").read_text())


def found(joined, name):
    return [event for event in joined["traceEvents"] if event["name"] == name]


def test_one_time_line(joined):
    """Times are counted from the earliest moment, whatever each file's own origin; lengths are kept."""
    assert joined["baseTimeNanoseconds"] == BASE + 1_900_000
    times = {name: found(joined, name)[0]["ts"] for name in ("first", "second", "kernel", "end")}
    assert times == {"first": 100.0, "second": 200.0, "kernel": 300.0, "end": 400.0}
    assert [(each["ts"], each["dur"]) for each in found(joined, "step 3")] == [(0.0, 600.0), (100.0, 400.0)]
    assert found(joined, "first")[0]["dur"] == 5.0


def test_ranks_are_processes(joined):
    """``pid`` is the rank; threads of a rank stay apart, and so do arrows of one number on two ranks."""
    assert {event["pid"] for event in joined["traceEvents"]} == {0, 1}
    assert [each["args"]["name"] for each in found(joined, "process_name")] == ["rank 0/2", "rank 1/2"]
    assert found(joined, "first")[0]["pid"] == 0
    threads = [found(joined, name)[0]["tid"] for name in ("second", "kernel", "end", "step 3")]
    assert len(set(threads)) == 4
    first, second = found(joined, "arrow")
    assert first["id"] != second["id"]
    names = {(each["pid"], each["tid"]): each["args"]["name"] for each in found(joined, "thread_name")}
    assert names[1, found(joined, "kernel")[0]["tid"]] == "0 7"


def test_other_files_are_refused(tmp_path):
    """What is no trace is named, and nothing is written."""
    (tmp_path / "0").write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"expected a trace of torch\.profiler in"):
        join_traces([tmp_path / "0"], [[]], tmp_path / "all.json")
    assert not (tmp_path / "all.json").exists()


def test_times_since_long_ago_are_whole_nanoseconds(tmp_path):
    """Where a profiler counts from its host's start, a double holds no nanoseconds; none comes out negative."""
    parts = [part(tmp_path / "0", BASE, [op("x", 5_432_109_876_543.2197), op("y", 5_432_109_876_544.2207)])]
    join_traces(parts, [[]], tmp_path / "all.json")
    joined = json.loads((tmp_path / "all.json").read_text())
    assert [found(joined, name)[0]["ts"] for name in "xy"] == [0.0, pytest.approx(1.0, abs=0.002)]
    assert all(event["ts"] == round(event["ts"], 3) for event in joined["traceEvents"] if event["ph"] == "X")
