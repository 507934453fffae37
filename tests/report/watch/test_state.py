"""What a run directory says while it grows, and after."""

import itertools
import json
import math
import os

import pytest

from report.made_runs import make_run
from unisono.errors import ConfigError
from unisono.observe.speed import Slow
from unisono.report.run_view import read_run
from unisono.report.watch.state import MOST_POINTS, WatchedRun
from unisono.report.watch.told import events
from unisono.system.processes import boot_id, look_at


def holder(pid):
    ticks = look_at(os.getpid()).start_ticks
    return json.dumps({"host": "here", "boot_id": boot_id(), "pid": pid, "start_ticks": ticks})


def test_a_finished_run(tmp_path):
    """All that was written, by one look; a phase's share is the mean of the last steps."""
    run = WatchedRun(make_run(tmp_path / "run"))
    assert (run.state, run.step, run.epoch, run.damaged.total(), run.lost()) == ("finished", 60, 0, 0, [])
    assert run.metrics == {"test_accuracy": pytest.approx(1 - 1 / 60)}
    assert run.losses[0] == (1, 2.0)
    facts = run.facts()
    assert (facts["workers"], facts["launches"], facts["eta_s"], facts["steps"]) == (2, 1, None, None)
    assert facts["phases_s"]["1"]["backward"] == pytest.approx(0.020)
    assert (facts["samples_per_s"], facts["speed_is"]) == (1600.0, "mean")  # that of its summary


def test_how_fast_it_is_now(tmp_path):
    """By the clock over the last 50 steps, checkpoints and the pauses between them too; and within steps alone."""
    path = make_run(tmp_path / "run", result=False, other=50)  # the loop's own body
    facts = WatchedRun(path).facts()
    clock_s = 50 * (0.036 + 0.050) + 3 * 0.030
    assert (facts["samples_per_s"], facts["speed_is"]) == (pytest.approx(50 * 64 / clock_s, abs=0.05), "now")
    assert facts["samples_per_s_within"] == pytest.approx(64 / 0.036, abs=0.05)
    assert read_run(path).throughput() == [(step, pytest.approx(64 / 0.036)) for step in range(1, 61)]


def test_it_grows(tmp_path):
    """A step that has come is seen at the next look, half a line is not, a strange line is counted."""
    path = make_run(tmp_path / "run", result=False, last_step=460)
    (path / "run.lock").write_text(holder(os.getpid()))
    run = WatchedRun(path)
    assert (run.state, run.step, run.num_steps) == ("training", 60, 460)
    assert run.eta_s == pytest.approx((460 - 60) * (49 * 0.1 + 0.066) / 50)  # on the clock, as the last 50 steps
    assert run.facts()["leader_memory_bytes"] > 1 << 20
    assert not run.poll()
    line = {"step": 61, "epoch": 2, "num_samples": 64, "loss": (0.5).hex()}
    with (path / "ledger.jsonl").open("a") as ledger:
        ledger.write(json.dumps(line) + "\nrubbish\n" + '{"step": 62')
    assert run.poll()
    assert (run.step, run.epoch, run.losses[-1], run.damaged.total()) == (61, 2, (61, 0.5), 1)


def test_a_damaged_ledger(tmp_path):
    """A cut last line is told, with what to do, once nobody writes it any more; a change is seen at the next look."""
    path = make_run(tmp_path / "run", result=False)
    (path / "run.lock").write_text(holder(os.getpid()))
    whole = (path / "ledger.jsonl").read_text()
    (path / "ledger.jsonl").write_text(whole + '{"step": 61, "ep')
    (path / "checkpoints" / "step-00000040.0123abcd").mkdir(parents=True)
    run = WatchedRun(path)
    assert (run.state, run.damage()) == ("training", None)
    (path / "run.lock").write_text(holder(2**22 + 1))
    assert "breaks off within line 61" in run.facts()["damage"]
    assert "goes on after the checkpoint of step 40" in run.damage()
    assert any("breaks off within line 61" in line for line in events(run))
    (path / "ledger.jsonl").write_text(whole)
    assert run.damage() is None
    (path / "metrics.jsonl").write_text('{"step": 1, "epoch": 0, "values": {"a": 1.0}}\nrubbish\n{"step": 3}\n')
    assert "metrics.jsonl is damaged in line 2: what was recorded there is lost" in run.damage()


def test_how_it_ended(tmp_path):
    """Without a result: whoever held it has died; a stop says so; a run on another machine is judged by its silence."""
    path = make_run(tmp_path / "run", result=False)
    (path / "run.lock").write_text(holder(2**22 + 1))  # no such process
    assert WatchedRun(path).state == "ended"
    (path / "result.json").write_text('{"finished": false, "steps": 60}')
    assert WatchedRun(path).state == "stopped"
    (path / "result.json").write_text('{"finish')  # being written
    assert WatchedRun(path).state == "ended"
    (path / "result.json").unlink()
    (path / "run.lock").write_text(json.dumps({"host": "there", "boot_id": "another", "pid": 1, "start_ticks": 1}))
    run = WatchedRun(path)
    assert run.state == "silent"  # its last step was long ago
    assert 0 < run.silent_s < math.inf


def test_launches_and_slow_ranks(tmp_path):
    """An interruption with the steps done again, and the rank whose own work is longer."""
    run = WatchedRun(make_run(tmp_path / "run", steps=90, launches=((1, 40), (31, 90)), slow=1))
    assert [launch[0] for launch in run.launches] == [1, 2]
    assert run.launches[1] == (2, 2, 31, 40)
    assert run.slowest() == Slow(1, "forward", pytest.approx(0.041 / 4), pytest.approx(0.031 / 4))
    assert WatchedRun(make_run(tmp_path / "even")).slowest() is None
    waiting = make_run(tmp_path / "waiting", slow=1, other=900)  # 10 of 936 ms
    assert WatchedRun(waiting).slowest() is None


def test_a_rank_that_writes_its_first_second_later(tmp_path):
    """A launch is known from the first rank that has recorded a step of it; the leader comes a look later."""
    path = make_run(tmp_path / "run", launches=((1, 32), (31, 60)), reached=37)
    file = path / "phases" / "rank-0.jsonl"
    whole = file.read_text()
    file.write_text(whole[: whole.index('"step": 31, "at_ns": 0') - 1])  # the second launch's head, and no step of it
    run = WatchedRun(path)
    assert (run.launches[-1], list(run.ranks)) == ((2, 2, 31, 32), [1])
    file.write_text(whole)
    run.poll()
    assert (run.launches[-1], sorted(run.ranks)) == ((2, 2, 31, 37), [0, 1])


def test_a_rank_that_the_others_left_behind(tmp_path):
    """Its steps end early while others go on; one that is only a second behind has just not written yet."""
    path = make_run(tmp_path / "run", workers=3)
    file = path / "phases" / "rank-2.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:52]))  # the head and 51 steps: 0.9 s before the end
    assert WatchedRun(path).lost() == []
    file.write_text("".join(lines[:31]))
    run = WatchedRun(path)
    assert run.lost() == [2]
    assert run.facts()["workers"] == 2
    file.write_text(lines[0])  # it was killed before it wrote a step
    run = WatchedRun(path)
    assert run.lost() == [2]
    assert [told.partition("rank")[2] for told in events(run)] == [" 2 is gone; it has written no step"]


def test_a_death_that_the_others_have_told(tmp_path):
    """The step is the launcher's, not the last one that the dead rank has written; it is known at once."""
    path = make_run(tmp_path / "run", workers=3, launches=((1, 30), (31, 60)))
    file = path / "phases" / "rank-2.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-5]))  # up to step 55, which is half a second before the end
    for rank in (0, 1):
        with (path / "phases" / f"rank-{rank}.jsonl").open("a") as phases:
            phases.write('{"lost": 2, "step": 58, "wall_ns": 1795000025000000000}\n')
    run = WatchedRun(path)
    assert (run.lost(), run.facts()["lost"], run.damaged.total()) == ([2], [2], 0)
    assert [told.partition("rank")[2] for told in events(run)][1:] == [" 2 died in step 58"]
    assert len(read_run(path).phases) == 175  # the report reads on
    file.unlink()  # it was on another host, which keeps its own
    assert [told.partition("rank")[2] for told in events(WatchedRun(path))][1:] == [" 2 died in step 58"]


def test_a_launch_without_a_step(tmp_path):
    """A complete run that was started again shows the ranks that did its steps; one that goes on shows the new ones."""
    path = make_run(tmp_path / "run")
    for rank in range(2):
        file = path / "phases" / f"rank-{rank}.jsonl"
        head = json.loads(file.read_text().splitlines()[0]) | {"launch": 2, "world_size": 1 + rank}
        with file.open("a") as phases:
            phases.write(json.dumps(head) + "\n")
    run = WatchedRun(path)
    assert {number: rank.step for number, rank in run.ranks.items()} == {0: 60, 1: 60}
    assert [number for number, *_ in run.launches] == [1]
    line = {"step": 61, "at_ns": 0, "ns": [1_000_000] * len(head["phases"])}
    with (path / "phases" / "rank-0.jsonl").open("a") as phases:
        phases.write(json.dumps(line) + "\n")
    run.poll()
    assert {number: rank.step for number, rank in run.ranks.items()} == {0: 61}
    assert run.launches[-1][:2] == (2, 1)


def test_a_rank_that_has_joined(tmp_path):
    """It has a number that nobody had at the beginning, and the step with which it came."""
    path = make_run(tmp_path / "run", workers=2)
    head, *lines = (path / "phases" / "rank-1.jsonl").read_text().splitlines()
    (path / "phases" / "rank-2.jsonl").write_text("\n".join([head.replace('"rank": 1', '"rank": 2'), *lines[40:], ""]))
    run = WatchedRun(path)
    assert (run.joined(), run.ranks[2].first, run.lost()) == ([2], 41, [])
    (path / "phases" / "rank-3.jsonl").write_text(head.replace('"rank": 1', '"rank": 3') + "\n")
    assert WatchedRun(path).joined() == [2]  # the other has done no step yet


def test_a_long_run_stays_small(tmp_path):
    """However many steps there are, the curve has so many points, evenly, with both ends and whatever their values."""
    run = WatchedRun(make_run(tmp_path / "run", steps=5 * MOST_POINTS, launches=((1, 5 * MOST_POINTS),)))
    assert len(run.losses) <= 2 * MOST_POINTS
    assert (run.losses[0][0], run.losses[-1][0]) == (1, 5 * MOST_POINTS)
    assert {after[0] - before[0] for before, after in itertools.pairwise(run.losses[:-1])} == {4}


def test_no_run(tmp_path):
    """A place without a run is refused; a run that has taken its directory has just begun."""
    with pytest.raises(ConfigError, match="expected a run directory"):
        WatchedRun(tmp_path)
    (tmp_path / "run.lock").write_text(holder(os.getpid()))
    run = WatchedRun(tmp_path)
    assert (run.state, run.losses, run.speed) == ("starting", [], None)
