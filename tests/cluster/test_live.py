"""Live recovery over namespaced hosts: networks that fall apart; one side goes on, the others end without a write.

And workers and hosts that come back.
"""

import time

import pytest

from cluster.test_namespaces import cluster
from cluster.test_namespaces import reference as reference
from hosts import differs, gate, result_of
from nodes.test_live import gates, let_join

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

LIVE = ("--trust-network", "--live", "auto", "--silence", "2", "--heartbeat", "60")
GROWS = (*LIVE, "--max-restarts", "2")


def start_three(hosts, *more, **where):
    """Start a worker on each of three hosts, and let all come to a gate."""
    started = [
        hosts.on(index, gate(9), *more, nodes="3", rank=index, workers=1, options=LIVE, **where) for index in range(3)
    ]
    for host in started[1:]:
        host.wait_for_step(9)
    return started


def test_two_hosts_and_one_apart(tmp_path, reference):
    """2 + 1: the two with the deciding one finish the step; the third, alive, ends its workers and says why."""
    with cluster(tmp_path, 3) as hosts:
        first, second, third = start_three(hosts)
        began = time.monotonic()
        hosts.net.link(2, "down")
        hosts.open(9)
        assert hosts.finish(first, second) == [0, 0], hosts.words()
        assert differs(hosts.out, reference) == ""
        assert (result_of(hosts.out)["deaths"], result_of(hosts.out)["world_size"]) == (1, 2)
        assert third.finish(60) == 1, third.err
        assert "has not answered for" in third.err
        assert "attempt 1" not in hosts.words()
        assert time.monotonic() - began < 60


def test_the_deciding_host_apart(tmp_path, reference):
    """1 + 2: the two others agree and finish the step; the first, alive, ends its worker, says why, writes nothing."""
    with cluster(tmp_path, 3) as hosts:
        first, second, third = start_three(hosts, out="own")
        began = time.monotonic()
        hosts.net.link(0, "down")
        hosts.open(9)
        assert hosts.finish(second, third) == [0, 0], hosts.words()
        for host in (second, third):
            assert differs(host.folder / "own", reference) == ""
        assert (result_of(second.folder / "own")["deaths"], result_of(second.folder / "own")["world_size"]) == (1, 2)
        assert first.finish(60) == 1, first.err
        assert "no majority of the 3" in first.err
        ledger = (first.folder / "own" / "ledger.jsonl").read_text().splitlines()
        assert len(ledger) < 9
        assert not (first.folder / "own" / "result.json").exists()
        assert "attempt 1" not in hosts.words()
        assert time.monotonic() - began < 60


def test_the_deciding_host_dies(tmp_path, reference):
    """With its launcher and its worker, which leads; one directory for all hosts is taken over."""
    with cluster(tmp_path, 3) as hosts:
        first, second, third = start_three(hosts)
        hosts.net.link(0, "down")  # what its kernel would say is not heard
        first.kill_everything()
        hosts.open(9)
        assert hosts.finish(second, third) == [0, 0], hosts.words()
        assert differs(hosts.out, reference) == ""
        assert "host 1 decides from now on." in second.err
        assert "attempt 1" not in hosts.words()


def test_all_apart(tmp_path):
    """1 + 1 + 1: none is a majority; all end their workers and say so."""
    with cluster(tmp_path, 3) as hosts:
        started = start_three(hosts)
        for index in range(3):
            hosts.net.link(index, "down")
        hosts.open(9)
        assert hosts.finish(*started) == [1, 1, 1], hosts.words()
        assert all("no majority of the 3" in host.err for host in started)
        assert not (hosts.out / "result.json").exists()


def test_one_way_only(tmp_path, reference):
    """Two hosts, and what the second one sends is lost: the first goes on alone."""
    with cluster(tmp_path, 2) as hosts:
        pair = [hosts.on(index, gate(9), rank=index, workers=1, options=LIVE) for index in (0, 1)]
        pair[1].wait_for_step(9)
        hosts.net.lose_way(1, 0)
        hosts.open(9)
        assert hosts.finish(*pair) == [0, 1], hosts.words()
        assert differs(hosts.out, reference) == ""


def test_the_world_grows_back(tmp_path, reference):
    """The only worker of a host dies, and one of two of another: each launcher replaces its own, over the network."""
    steps = range(10, 20)
    dying = ("forward@5:1", "forward@7:3")
    with cluster(tmp_path, 3) as hosts:
        first, *_ = (
            hosts.on(index, *dying, *gates(0, *steps), nodes="3", rank=index, workers=count, options=GROWS)
            for index, count in enumerate((1, 2, 1))
        )
        let_join(hosts, first, steps, "rank 5 has joined the others", "rank 6 has joined the others")
        assert hosts.finish() == [0, 0, 0], hosts.words()
        assert differs(hosts.out, reference) == ""
        assert [result_of(hosts.out)[name] for name in ("deaths", "joins", "world_size")] == [2, 2, 4]
        assert "attempt 1" not in hosts.words()


def test_a_host_that_was_cut_off_comes_back(tmp_path, reference):
    """It ends alone; started again when its link is up, it takes its place behind a step, which is not done again."""
    with cluster(tmp_path, 3) as hosts:
        first, second, third = start_three(hosts, gate(15))
        hosts.net.link(2, "down")
        hosts.open(9)
        assert third.finish(60) == 1, third.err
        first.wait_for_step(15)
        hosts.net.link(2, "up")
        again = hosts.on(2, gate(9), gate(15), nodes="3", rank=2, workers=1, options=LIVE)
        first.wait_until_asked()
        second.wait_until_asked()
        hosts.open(15)
        assert hosts.finish(first, second, again) == [0, 0, 0], hosts.words()
        assert differs(hosts.out, reference) == ""
        assert (result_of(hosts.out)["resumed_from_step"], result_of(hosts.out)["world_size"]) == (15, 3)
