"""Launchers that stand for hosts: who is lost when, how each has to end, and whether the others' bits stay the same."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unisono.experiments.chaos import hosts as chaos_hosts
from unisono.experiments.chaos.deaths import Death, plan_on_hosts
from unisono.experiments.chaos.hosts import HostsRun, Launchers
from unisono.experiments.chaos.live import chaos_live
from unisono.system.heartbeat import STEPPING, HeartbeatPage

HOME = Path(__file__).parent
KINDS = {"member", "host", "second", "silent", "launcher", "decider", "silent decider"}


def test_the_seed_decides_who_is_lost():
    """Each run begins with another kind, each kind has its turn; the steps grow, up to where deaths still count."""
    plans = [[*itertools.islice(plan_on_hosts(3, number, steps=60, workers=4), 12)] for number in range(7)]
    assert plans[2] == [*itertools.islice(plan_on_hosts(3, 2, steps=60, workers=4), 12)] != plans[3]
    assert {plan[0].kind for plan in plans} == {death.kind for death in plans[0]} == KINDS
    for plan in plans:
        steps = [death.step for death in plan]
        assert steps == sorted(steps) and 2 <= steps[0] <= 13 and steps[-1] == 48


ALIVE = ((0, 1, 2), (1, 2, 5), (1,), (1, 2, 6), (1, 2, 7))  # three hosts of two; 6 has come later to the first


def test_the_deciding_host_keeps_a_worker(tmp_path):
    """Of those that are there, all may die but the last one of the host that decides: the first one, or a later one."""
    with Launchers([], {}, tmp_path) as launchers:
        launchers.temporary = [tmp_path] * 3
        run = HostsRun(launchers, 2, 10)
        found = {members: run._may_die(dict.fromkeys(members)) for members in ALIVE}
        run._decider = 1
        later = [run._may_die(dict.fromkeys(members)) for members in ((0, 1, 2), (1, 2, 5), (1,))]
    assert found == {(0, 1, 2): [0, 1, 2], (1, 2, 5): [2, 5], (1,): [], (1, 2, 6): [1, 2, 6], (1, 2, 7): [2, 7]}
    assert later == [[0, 1], [1, 5], [1]]


@pytest.mark.parametrize(
    ("codes", "lost", "wrong"),
    [
        ((0, 0), {}, []),
        ((0, 1), {}, ["the launcher of host 1 ended with exit code 1:\nbye 1\n"]),
        ((3, 0), {}, ["the launcher of host 0 ended with exit code 3:\nbye 3\n"]),
        ((0, 1), {1: signal.SIGCONT}, []),
        ((0, 0), {1: signal.SIGCONT}, ["the launcher of host 1 ended with exit code 0, though its host was left out"]),
    ],
)
def test_how_launchers_have_to_end(tmp_path, codes, lost, wrong):
    """Well, but for one whose host was left out: that it takes itself for done would be an error."""
    program = "import sys; print('bye', sys.argv[1]); sys.exit(int(sys.argv[1]))"
    commands = [[sys.executable, "-c", program, str(code)] for code in codes]
    with Launchers(commands, {**os.environ}, tmp_path / "place") as launchers:
        for host, signum in lost.items():
            launchers.signal(host, signum)
        found = launchers.end(60)
    assert len(found) == len(wrong)
    assert all(told.startswith(words) for told, words in zip(found, wrong, strict=True)), found


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [0, 1])
def test_launchers_that_do_not_end(tmp_path, monkeypatch, hangs):
    """They are waited for only so long, and told of, also where their host was not lost; the control is above."""
    monkeypatch.setattr(chaos_hosts, "_END_S", 5.0)
    program = "import sys, time; time.sleep(int(sys.argv[1]))"
    commands = [[sys.executable, "-c", program, "600" if host == hangs else "0"] for host in range(2)]
    with Launchers(commands, {**os.environ}, tmp_path / "place") as launchers:
        assert launchers.end(1) == [f"the launcher of host {hangs} did not end:\n"]


class Playing:
    """Stands in for launchers of three hosts, whose workers 0 and 1 do a step more whenever somebody looks at them."""

    def __init__(self, place, pages):
        self.temporary, self.pages, self.left, self.woken_at = [place] * 3, pages, [0, 1, 2], None

    def poll(self):
        done = self.pages[0].read().done
        for page in self.pages[:2]:
            page.begin(min(done + 2, 10))
            page.done(min(done + 1, 10))

    def signal(self, host, signum):
        assert host == 2
        if signum == signal.SIGCONT:
            self.woken_at = self.pages[0].read().done


@pytest.mark.parametrize(("phase", "done", "missed"), [(b"update", 6, 8), (b"record", 7, 9)])
def test_a_stopped_host_is_woken_when_the_others_have_done_a_step_without_it(tmp_path, phase, done, missed):
    """What stops in an update has given its step all, so that the others end that step without leaving it out."""
    place = tmp_path / "unisono-0"
    place.mkdir()
    pages = [HeartbeatPage.create(place / f"heartbeat-{rank}") for rank in range(3)]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        for page in pages:
            page.join(worker.pid)
            page.set_state(STEPPING)
            page.begin(7)
            page.done(6)
        pages[2].done(done)
        pages[2].note(phase)
        launchers = Playing(tmp_path, pages)
        [died] = HostsRun(launchers, 1, 10).strike(Death(rank=1, aim=phase.decode(), delay_s=0, kind="silent"))
        worker.communicate(b"\n")
    assert (died.rank, died.step, launchers.woken_at) == (2, missed, missed)


def play(job, **how):
    """Play with a silence that a loaded machine does not reach."""
    given = {"workers": 1, "silence": 3.0, "replicas": 6, "fault_seed": 4} | how
    return chaos_live(str(HOME / job), env=os.environ, **given)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_losses_change_nothing():
    """Two of three workers in each run, with their hosts, the deciding one too, killed or stopped: equal bits."""
    found = play("live_job.py", hosts=3, kills=6)
    assert (found.equal, found.replayed, found.faults, found.runs) == (True, 0, [], 3)
    assert [died.kind for died in found.deaths] == ["silent decider", "member", "member", "decider", "decider", "host"]
    assert all(died.gap_s for died in found.deaths)
    assert sum(count for _, count, *_ in found.kinds()) == len(found.deaths) == 6


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_of_hosts_that_are_replaced_change_nothing():
    """On two hosts each launcher replaces its own, and those that come die as well: equal bits, no step done again."""
    found = play("live_job.py", hosts=2, workers=2, kills=3, grow=True)
    assert (found.equal, found.replayed, found.faults) == (True, 0, [])
    assert len(found.deaths) == 3
    assert found.joins > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_loss_that_looks_at_the_world_is_found():
    """The negative control: it depends on how many ranks there are."""
    found = play("live_job_of_the_world.py", hosts=2, kills=1)
    assert (found.equal, found.replayed, len(found.deaths)) == (False, 0, 1)
    assert any("fingerprint differ" in fault for fault in found.faults)
