"""Workers of several launchers on loopback: one dies, or a whole host goes, and the others finish the same step."""

import re
import signal
import time
from pathlib import Path

import pytest

from hosts import differs, free_port, gate, result_of
from unisono.report.watch.state import WatchedRun
from unisono.report.watch.told import events

LIVE = ("--live", "auto", "--silence", "5", "--heartbeat", "60")  # a loaded machine is not silence


def starts(hosts, *arguments, workers, options=LIVE, out=None):
    """Start as many hosts as there are numbers of workers."""
    given = {"nodes": str(len(workers)), "options": options, "out": out}
    return [
        hosts.start("abc"[rank], *arguments, rank=rank, workers=count, **given) for rank, count in enumerate(workers)
    ]


@pytest.mark.slow
def test_a_worker_of_another_host_dies(hosts, reference):
    """Two hosts: the second one's only worker is killed within a step; the first finishes it, with the same bits."""
    first, _ = starts(hosts, "forward@9:2", workers=(2, 1), out="own")
    assert hosts.finish() == [0, 0], hosts.words()
    assert differs(first.folder / "own", reference) == ""
    result = result_of(first.folder / "own")
    assert (result["deaths"], result["world_size"], result["resumed_from_step"]) == (1, 2, 0)
    assert "rank 2 was killed by SIGKILL in step 9; 2 workers go on without it." in first.err
    assert "attempt 1" not in hosts.words()
    assert any(line.endswith("rank 2 died in step 9") for line in events(WatchedRun(first.folder / "own")))


@pytest.mark.slow
def test_workers_of_all_hosts_die(hosts, reference):
    """Three hosts lose a worker each but one, the leader among them; a shared directory, and no restart."""
    first, *_ = starts(hosts, "forward@5:3", "reduce@9:0", workers=(2, 1, 1))
    assert hosts.finish() == [0, 0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""
    assert (result_of(hosts.out)["deaths"], result_of(hosts.out)["world_size"]) == (2, 2)
    assert first.err.count("go on without it") == 2
    assert "attempt 1" not in hosts.words()


@pytest.mark.slow
def test_a_host_goes_away(hosts, reference):
    """The second of three is lost with its launcher: the others notice by its silence, and go on in the same step."""
    first, second, third = starts(hosts, gate(9), workers=(1, 2, 1))
    second.wait_for_step(9)
    second.kill_everything()
    hosts.open(9)
    assert hosts.finish(first, third) == [0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""
    assert (result_of(hosts.out)["deaths"], result_of(hosts.out)["world_size"]) == (2, 2)
    assert re.search(r"rank 1 is on host 1, which has not been heard for \d+\.\d s; 3 workers go on", first.err)
    assert "attempt 1" not in hosts.words()


def written_in(out):
    """Return when each file of a run was written; a launcher's own socket is no part of it, and goes with it."""
    return {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.suffix != ".sock"}


@pytest.mark.slow
def test_a_launcher_that_stands_still(hosts, reference):
    """Stopped longer than the silence, it is left out; woken, it ends its workers at once, says why, and none wrote."""
    first, second = starts(hosts, gate(9), workers=(1, 1), options=("--live", "auto", "--silence", "2", *LIVE[4:]))
    (worker,) = second.wait_for_step(9)
    second.process.send_signal(signal.SIGSTOP)
    hosts.open(9)
    assert first.finish() == 0, hosts.words()
    assert differs(hosts.out, reference) == ""
    written = written_in(hosts.out)
    second.process.send_signal(signal.SIGCONT)
    assert second.finish(60) == 1, hosts.words()
    assert "lost the rendezvous" in second.err and "The workers of this host were stopped" in second.err
    assert written_in(hosts.out) == written
    assert worker.pid not in [one.pid for one in second.readings()]


@pytest.mark.slow
def test_the_deciding_host_is_lost(hosts, reference):
    """The first of three, which keeps the rendezvous and leads: the others agree, and finish the step without it."""
    first, second, third = starts(hosts, gate(9), workers=(1, 1, 2))
    first.wait_for_step(9)
    second.wait_for_step(9)
    first.kill_everything()
    hosts.open(9)
    assert hosts.finish(second, third) == [0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""
    assert (result_of(hosts.out)["deaths"], result_of(hosts.out)["world_size"]) == (1, 3)
    assert "host 1 decides from now on." in second.err
    found = re.search(r"rank 0 is on host 0, which has not been heard for (\d+\.\d) s; 3 workers go on", second.err)
    assert found and float(found[1]) >= 7.5, second.err
    assert "attempt 1" not in hosts.words()


@pytest.mark.slow
def test_the_first_of_two_hosts_is_lost(hosts):
    """The other one, no majority, ends its workers within the silence, long before the heartbeat."""
    first, second = starts(hosts, gate(9), workers=(1, 2))
    second.wait_for_step(9)
    first.kill_everything()
    began = time.monotonic()
    assert second.finish(60) == 1, second.err
    assert time.monotonic() - began < 40  # a heartbeat is 60 s
    assert "lost the rendezvous" in second.err
    assert "the hosts that answer are no majority of the 2" in second.err


@pytest.mark.slow
def test_no_worker_is_left_on_the_deciding_host(hosts, reference):
    """Its only worker dies: all start again from the last checkpoint, and it is said why."""
    first, _ = starts(hosts, "forward@9:0", workers=(1, 2), options=(*LIVE, "--max-restarts", "2"))
    assert hosts.finish() == [0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""
    assert "cannot go on without it: no worker is left on the deciding host" in first.err
    assert "Restart 1 on all hosts from the last checkpoint" in first.err


@pytest.mark.slow
def test_a_stop_after_a_death(hosts, reference):
    """The other host is asked to stop: all that are left stop after one step, saved; the same commands go on."""
    first, second = starts(hosts, "forward@5:1", gate(9), workers=(2, 1))
    second.wait_for_step(9)
    second.process.send_signal(signal.SIGTERM)
    second.wait_until_asked()
    hosts.open(9)
    assert hosts.finish() == [75, 75], hosts.words()
    assert "2 workers go on without it" in first.err
    again = [hosts.start(name, rank=rank, workers=1) for rank, name in enumerate(("d", "e"))]
    assert hosts.finish(*again) == [0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""


@pytest.mark.slow
def test_an_exception_is_the_programs_own(hosts):
    """A worker that raises on the second host ends all, with its traceback on both, as without live recovery."""
    starts(hosts, "raise!@3:1", workers=(1, 1))
    assert hosts.finish() == [1, 1], hosts.words()
    for host in hosts.started:
        assert "rank 1 of 2 failed with ValueError: a bad sample" in host.err


def gates(rank, *steps):
    """Return the job's arguments by which a rank waits before each of these steps."""
    return [f"gate!@{step}:{rank}" for step in steps]


def let_join(hosts, launcher, steps, *words):
    """Let one step after the other begin until a launcher has said so: who is ready is let in behind one of them."""
    is_said = lambda: all(text in launcher.err for text in words)  # noqa: E731
    for step in steps:
        hosts.open(step)
        deadline = time.monotonic() + (200 if step == steps[-1] else 10)
        while not is_said() and time.monotonic() < deadline:
            assert launcher.process.poll() is None, hosts.words()
            time.sleep(0.02)
        if is_said():
            break
    for step in steps:
        hosts.open(step)
    assert is_said(), hosts.words()


GROWS = (*LIVE, "--max-restarts", "2")
STEPS = range(10, 20)


@pytest.mark.slow
def test_workers_of_both_hosts_are_replaced_and_lead(hosts, reference):
    """Two die at once; then the leader, so that one leads that has come later, and not one of the other host."""
    dying = ("forward@5:1", "forward@5:2")
    first, _ = starts(hosts, *dying, *gates(0, *STEPS), "forward@20:0", workers=(2, 1), options=GROWS)
    let_join(hosts, first, STEPS, "rank 3 has joined the others", "rank 4 has joined the others")
    assert hosts.finish() == [0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""
    assert ": 3 workers." in first.err  # whole again
    result = result_of(hosts.out)
    assert (result["deaths"], result["joins"] >= 2, result["resumed_from_step"]) == (3, True, 0)
    assert "attempt 1" not in hosts.words()


@pytest.mark.slow
def test_a_worker_is_replaced_after_a_succession(hosts, reference):
    """The deciding host is lost; the second one decides, and lets one join that the third has started."""
    steps = range(12, 21)
    dying = ("forward@10:3", *gates(1, 9, *steps))
    first, second, third = starts(hosts, *dying, workers=(1, 1, 2), options=GROWS)
    second.wait_for_step(9)
    first.kill_everything()
    hosts.open(9)
    let_join(hosts, second, steps, "rank 6 has joined the others")
    assert hosts.finish(second, third) == [0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""
    result = result_of(hosts.out)
    assert [result[name] for name in ("deaths", "joins", "world_size")] == [2, 1, 3]
    assert "host 1 decides from now on." in second.err
    assert "attempt 1" not in hosts.words()


@pytest.mark.slow
def test_hosts_with_directories_of_their_own(hosts, reference):
    """Who joins has not what its host's holds: it is refused, and the world stays smaller."""
    first, second = starts(hosts, "forward@5:1", *gates(0, *STEPS), workers=(1, 2), options=GROWS, out="own")
    let_join(hosts, second, STEPS, "rank 4 cannot join")
    assert hosts.finish() == [0, 0], hosts.words()
    assert differs(first.folder / "own", reference) == ""
    assert "each host has a run directory of its own" in second.err
    assert result_of(first.folder / "own")["world_size"] == 2


def lose_the_first(first, second, hosts):
    """Lose the host that decides and keeps the rendezvous, with all its processes, in step 9."""
    first.wait_for_step(9)
    second.wait_for_step(9)
    first.kill_everything()
    hosts.open(9)


@pytest.mark.slow
def test_the_others_start_again_without_the_first_host(hosts, reference):
    """It is lost; later a worker fails: the two others meet where it is decided, and go on from the checkpoint."""
    options = (*LIVE, "--max-restarts", "2")
    first, second, third = starts(hosts, gate(9), "raise@15:1", workers=(1, 1, 2), options=options)
    lose_the_first(first, second, hosts)
    assert hosts.finish(second, third) == [0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""
    assert result_of(hosts.out)["world_size"] == 3
    for host, node in ((second, 0), (third, 1)):
        assert "Restart 1 on all hosts from the last checkpoint" in host.err
        assert f"attempt 1: 2 hosts, 3 workers; this is node {node} with rank" in host.err


@pytest.mark.slow
def test_the_others_end_without_the_first_host(hosts, reference):
    """The control: where no restart is allowed they end, say with which options to go on, and with these they do."""
    first, second, third = starts(hosts, gate(9), "raise@15:1", workers=(1, 1, 1))
    lose_the_first(first, second, hosts)
    workers = [reading.pid for host in (second, third) for reading in host.readings()]
    assert hosts.finish(second, third) == [1, 1], hosts.words()
    assert "ValueError: a bad sample" in second.err
    for host, rank in ((second, 0), (third, 1)):
        assert f"the same command with --nnodes 2 --node-rank {rank} --rdzv-endpoint 127.0.0.1:" in host.err, host.err
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    hosts.endpoint = f"127.0.0.1:{free_port()}"  # the one that is told may be another program's here
    again = [hosts.start(name, gate(9), "raise@15:1", rank=rank) for rank, name in enumerate("de")]
    assert hosts.finish(*again) == [0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""


@pytest.mark.slow
def test_a_host_comes_back(hosts, reference):
    """Lost in step 9, and started again: all stop behind step 15, saved, and go on together; no step is done twice."""
    arguments = gate(9), gate(15)
    first, second, third = starts(hosts, *arguments, workers=(1, 1, 1))
    third.wait_for_step(9)
    third.kill_everything()
    hosts.open(9)
    first.wait_for_step(15)
    again = hosts.start("d", *arguments, rank=2, nodes="3", options=LIVE)
    for host in (first, second):
        host.wait_until_asked()
    hosts.open(15)
    assert hosts.finish(first, second, again) == [0, 0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""
    result = result_of(hosts.out)
    assert (result["resumed_from_step"], result["world_size"]) == (15, 3)
    assert "attempt 1: 3 hosts, 3 workers; this is node 2 with rank 2 to 2" in again.err


@pytest.mark.slow
def test_the_others_do_not_wait_for_a_lost_host(hosts, reference):
    """A worker fails after a host was lost: the two that have gone on without it start again, and ask for no third."""
    arguments = gate(9), "raise@15:1"
    first, second, third = starts(hosts, *arguments, workers=(1, 1, 1), options=GROWS)
    third.wait_for_step(9)
    third.kill_everything()
    hosts.open(9)
    assert hosts.finish(first, second) == [0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""
    assert "attempt 1: 2 hosts, 2 workers" in first.err
