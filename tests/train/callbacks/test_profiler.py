"""The profiler's trace: the steps asked for, all ranks on one time line, and not a bit changed."""

import json

import pytest

from ranks import run_processes, run_threads
from train.callbacks.small import fit, profiled
from unisono.callbacks import Profiler
from unisono.errors import ConfigError


def steps_of(trace):
    """Return {(rank, step): (from, to)} in microseconds."""
    return {
        (event["pid"], event["args"]["step"]): (event["ts"], event["ts"] + event["dur"])
        for event in trace["traceEvents"]
        if event.get("cat") == "step"
    }


def test_a_window_of_steps(tmp_path):
    """The steps asked for, with what torch does inside them; the fingerprint is that of a run without."""
    assert profiled(None, tmp_path / "with", 4, 2) == fit()[0]["fingerprint"]
    folder = tmp_path / "with" / "profile"
    assert [path.name for path in folder.iterdir()] == ["steps-4-5.json"]
    trace = json.loads((folder / "steps-4-5.json").read_text())
    spans = steps_of(trace)
    assert sorted(spans) == [(0, 4), (0, 5)]
    assert spans[0, 4][1] <= spans[0, 5][0]
    updates = [event for event in trace["traceEvents"] if "Optimizer.step" in event["name"]]
    assert len(updates) == 2
    for (began, ended), update in zip(spans.values(), updates, strict=True):
        assert began <= update["ts"] + 1000  # two clocks of one host
        assert update["ts"] + update["dur"] <= ended + 1000


def test_a_run_that_ends_within_the_window(tmp_path):
    """What was recorded is kept; a window that never comes leaves nothing."""
    profiled(None, tmp_path / "a", 9, 50)
    assert [path.name for path in (tmp_path / "a" / "profile").iterdir()] == ["steps-9-10.json"]
    profiled(None, tmp_path / "b", 100, 1)
    assert not (tmp_path / "b" / "profile").exists()


def test_a_failed_run_leaves_the_profiler_free(tmp_path):
    """A run that fails within the window stops the profiler: the next one can start it."""

    def fail(output, target):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit([Profiler(1, 5, folder=tmp_path / "none")], loss=fail)
    fit([Profiler(1, 1, folder=tmp_path / "next")])
    assert (tmp_path / "next" / "steps-1-1.json").exists()
    assert not (tmp_path / "none").exists()


def test_a_trace_that_cannot_be_written(tmp_path):
    """A folder that cannot be made costs the trace, with one warning; the run goes on."""
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="no trace of steps 2 to 2"):
        result, _ = fit([Profiler(2, 1, folder=tmp_path / "file")])
    assert result["fingerprint"] == fit()[0]["fingerprint"]


def test_what_is_refused(tmp_path):
    """No folder, no window, several ranks in one process."""
    with pytest.raises(ConfigError, match="expected a folder"):
        fit([Profiler()])
    with pytest.raises(ConfigError, match="num_steps as a whole number of steps from 1"):
        Profiler(1, 0)
    with pytest.raises(ConfigError, match="2 ranks in fewer"):
        run_threads(lambda transport: profiled(transport, tmp_path, 1, 1), 2)


@pytest.mark.slow
def test_two_processes_on_one_time_line(tmp_path):
    """Each step of the trace overlaps on both ranks, as steps that exchange gradients must; bits are unchanged."""
    expected = fit()[0]["fingerprint"]
    assert run_processes(profiled, 2, str(tmp_path), 2, 3) == [expected] * 2
    assert [path.name for path in (tmp_path / "profile").iterdir()] == ["steps-2-4.json"]
    trace = json.loads((tmp_path / "profile" / "steps-2-4.json").read_text())
    spans = steps_of(trace)
    assert sorted(spans) == [(rank, step) for rank in (0, 1) for step in (2, 3, 4)]
    for step in (2, 3, 4):
        assert max(spans[rank, step][0] for rank in (0, 1)) <= min(spans[rank, step][1] for rank in (0, 1))
    assert min(event["ts"] for event in trace["traceEvents"] if "ts" in event and event["ph"] != "M") == 0
    assert {event["pid"] for event in trace["traceEvents"] if event.get("cat") == "cpu_op"} == {0, 1}
