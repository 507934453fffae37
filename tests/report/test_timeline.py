"""The time line: every rank, every launch, nested slices that add up, in a file that tools open."""

import json

import pytest

from report.made_runs import HOSTILE, make_run
from unisono.errors import ConfigError
from unisono.report.timeline import write_timeline


@pytest.fixture
def events(tmp_path):
    run = make_run(tmp_path / "run", workers=3, launches=((1, 35), (31, 60)), slow=2)
    count = write_timeline(run, tmp_path / "t.json")
    found = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert len(found) == count
    return found


def test_every_rank_is_a_process_and_every_launch_a_track(events):
    """With readable names."""
    names = {(one["pid"], one.get("tid")): one["args"]["name"] for one in events if one["name"].endswith("_name")}
    assert names == {(rank, None): f"rank {rank}" for rank in range(3)} | {
        (rank, launch): f"launch {launch}" for rank in range(3) for launch in (1, 2)
    }
    steps = [one for one in events if one.get("cat") == "step"]
    assert len(steps) == 3 * (35 + 30)
    assert {one["ph"] for one in steps} == {"X"}


def test_phases_fill_their_step_without_gaps(events):
    """One after the other, from the step's beginning to its end, in microseconds."""
    for step in (one for one in events if one.get("cat") == "step"):
        at, end, track = step["ts"], step["ts"] + step["dur"], (step["pid"], step["tid"])
        phases = [one for one in events if one.get("cat") == "phase" and (one["pid"], one["tid"]) == track]
        inside = [one for one in phases if at <= one["ts"] < end]
        for one in inside:
            assert one["ts"] == pytest.approx(at)
            at += one["dur"]
        assert at == pytest.approx(step["ts"] + step["dur"])
        assert [one["name"] for one in inside][:4] == ["data", "forward", "backward", "reduce"]
    first = min(one["ts"] for one in events if "ts" in one)
    assert first == 0
    slow = next(one for one in events if one["name"] == "forward" and one["pid"] == 2)
    assert slow["dur"] == pytest.approx(20_000)


def test_bad_places_are_refused(tmp_path):
    """No run, no phases, a file of someone else; a hostile name is JSON like any other."""
    run = make_run(tmp_path / HOSTILE.replace("/", ""))
    write_timeline(run, tmp_path / "t.json")
    write_timeline(run, tmp_path / "t.json")
    assert "onerror" in json.loads((tmp_path / "t.json").read_text())["otherData"]["run"]
    (tmp_path / "mine.json").write_text("{}")
    with pytest.raises(ConfigError, match="none of ours"):
        write_timeline(run, tmp_path / "mine.json")
    with pytest.raises(ConfigError, match=r"score\.json"):
        write_timeline(tmp_path, tmp_path / "t.json")
    for file in (run / "phases").iterdir():
        file.unlink()
    with pytest.raises(ConfigError, match="no step phases"):
        write_timeline(run, tmp_path / "t.json")
