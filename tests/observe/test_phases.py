"""Step phases: every nanosecond is in one phase, every rank writes its own, a kill or a full disk costs no run."""

import json
import os
import sys
from pathlib import Path

import pytest

from unisono.observe import phases
from unisono.observe.phases import BACKWARD, DATA, EVALUATE, FORWARD, OTHER, PHASES, UPDATE, PhaseClock, read_phases
from unisono.system.descriptors import File
from unisono.system.directory import Directory

FACTS = {"launch": 1, "rank": 0, "world_size": 1}


class FakeClock:
    """Stands where it is put."""

    def __init__(self):
        self.now = 5_000

    def perf_counter_ns(self):
        return self.now

    def time_ns(self):
        return 1_000_000 + self.now


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(phases, "time", clock)
    return clock


def play(clock, watch, step, *spans):
    """Spend the time of a step in phases, one after the other."""
    watch.begin(step)
    for phase, nanoseconds in spans:
        watch.enter(phase)
        clock.now += nanoseconds


def test_phases_of_a_step_add_up_to_its_time(clock, tmp_path):
    """Each span goes to the phase it was spent in, also in several pieces; a step lasts until the next begins."""
    watch = PhaseClock()
    watch.open(Directory.open(tmp_path), FACTS)
    clock.now += 100  # before the first step: belongs to none
    play(clock, watch, 1, (DATA, 7), (FORWARD, 20), (BACKWARD, 30), (DATA, 1), (UPDATE, 5), (OTHER, 2))
    play(clock, watch, 2, (DATA, 3), (FORWARD, 4))
    with watch.within(EVALUATE):
        clock.now += 50
    clock.now += 6  # back in forward
    watch.end(2)
    clock.now += 1000  # after the last step
    watch.close()
    first, second = read_phases(tmp_path)
    zero = dict.fromkeys(PHASES, 0)
    assert first.ns == zero | {"data": 8, "forward": 20, "backward": 30, "update": 5, "other": 2}
    assert second.ns == zero | {"data": 3, "forward": 10, "evaluate": 50}
    assert second.began_ns - first.began_ns == sum(first.ns.values())
    assert first.began_ns == 1_000_000 + 5_100
    assert watch.totals == [first.ns[name] + second.ns[name] for name in PHASES]
    assert watch.num_steps == 2
    assert watch.share(DATA) == 11 / 128
    assert PhaseClock().share(DATA) == 0


def test_a_step_that_was_not_done_is_not_recorded(clock, tmp_path):
    """Half a step would look like a fast one."""
    watch = PhaseClock()
    watch.open(Directory.open(tmp_path), FACTS)
    play(clock, watch, 1, (FORWARD, 5))
    play(clock, watch, 2, (FORWARD, 5))
    watch.end(1)
    watch.close()
    assert [record.step for record in read_phases(tmp_path)] == [1]
    assert watch.totals[FORWARD] == 5


def test_launches_and_ranks_are_told_apart(clock, tmp_path):
    """A file goes on with the next launch, after a line that a kill has cut; other ranks have other files."""
    for launch, rank in ((1, 0), (1, 1), (2, 0)):
        file = tmp_path / "phases" / f"rank-{rank}.jsonl"
        if launch == 2:
            file.write_text(file.read_text()[:-9])
        watch = PhaseClock()
        watch.open(Directory.open(tmp_path), {"launch": launch, "rank": rank, "world_size": 3 - launch})
        play(clock, watch, 1, (FORWARD, 5))
        play(clock, watch, 2, (FORWARD, 5))
        watch.end(2)
        watch.close()
    told = [(record.launch, record.step, record.rank, record.world_size) for record in read_phases(tmp_path)]
    assert told == [(1, 1, 0, 2), (1, 1, 1, 2), (1, 2, 1, 2), (2, 1, 0, 1), (2, 2, 0, 1)]


def test_records_reach_the_file_after_a_second(clock, tmp_path):
    """What was recorded longer ago than a second survives a kill; younger records wait for the next write."""
    file = tmp_path / "phases" / "rank-0.jsonl"
    watch = PhaseClock()
    watch.open(Directory.open(tmp_path), FACTS)
    play(clock, watch, 1, (FORWARD, 1000))
    play(clock, watch, 2, (FORWARD, 1_500_000_000))
    assert len(file.read_text().splitlines()) == 1  # the head
    play(clock, watch, 3, (FORWARD, 1000))
    assert [json.loads(line).get("step") for line in file.read_text().splitlines()] == [None, 1, 2]
    watch.close()


def test_a_full_disk_costs_only_the_records(clock):
    """The run goes on, warned once."""
    watch = PhaseClock()
    with pytest.warns(UserWarning, match="no longer written"):
        watch.open(Directory.open(Path("/proc/self")), FACTS)
    play(clock, watch, 1, (FORWARD, 5))
    watch.end(1)
    watch.close()
    assert watch.totals[FORWARD] == 5
    full = PhaseClock()
    log = phases._PhaseLog.__new__(phases._PhaseLog)
    log._waiting, log._file, log._origin, log._written = [], File(os.open("/dev/full", os.O_WRONLY)), 0, 0
    full._log = log
    play(clock, full, 1, (FORWARD, 2_000_000_000))
    with pytest.warns(UserWarning, match="No space left"):
        full.end(1)
    play(clock, full, 2, (FORWARD, 2_000_000_000))
    full.end(2)
    full.close()


def test_there_may_be_no_records(tmp_path):
    """A directory of an older version has none."""
    assert read_phases(tmp_path) == []


def test_the_last_step_is_told_once(tmp_path):
    """A line of its own says where the loop ends; said again it is not written again, nor where nobody knows it."""
    watch = PhaseClock()
    watch.ends(5)  # nothing is kept yet
    watch.open(Directory.open(tmp_path), FACTS)
    for last in (5, 5, sys.maxsize, 10):
        watch.ends(last)
    watch.close()
    lines = (tmp_path / "phases" / "rank-0.jsonl").read_text().splitlines()
    assert lines[1:] == ['{"last": 5}', '{"last": 10}']
    assert read_phases(tmp_path) == []
