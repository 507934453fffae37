"""Live recovery over namespaced hosts: networks that fall apart; one side goes on, the others end without a write."""

import time

import pytest

from cluster.test_namespaces import cluster
from cluster.test_namespaces import reference as reference
from hosts import differs, gate, result_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

LIVE = ("--trust-network", "--live", "auto", "--silence", "2", "--heartbeat", "60")


def start_three(hosts, **where):
    """Start a worker on each of three hosts, and let all come to a gate."""
    started = [hosts.on(index, gate(9), nodes="3", rank=index, workers=1, options=LIVE, **where) for index in range(3)]
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
