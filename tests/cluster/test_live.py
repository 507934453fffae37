"""Live recovery over namespaced hosts: networks that fall apart; one side goes on, the others end without a write."""

import time

import pytest

from cluster.test_namespaces import cluster
from cluster.test_namespaces import reference as reference
from hosts import differs, gate, result_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

LIVE = ("--trust-network", "--live", "auto", "--silence", "2", "--heartbeat", "60")


def start_three(hosts):
    """Start a worker on each of three hosts, and let all come to a gate."""
    started = [hosts.on(index, gate(9), nodes="3", rank=index, workers=1, options=LIVE) for index in range(3)]
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
    """1 + 1 + 1: it alone goes on; the two others, which hear each other as little, end."""
    with cluster(tmp_path, 3) as hosts:
        first, *others = start_three(hosts)
        for index in (1, 2):
            hosts.net.link(index, "down")
        hosts.open(9)
        assert first.finish() == 0, hosts.words()
        assert differs(hosts.out, reference) == ""
        assert (result_of(hosts.out)["deaths"], result_of(hosts.out)["world_size"]) == (2, 1)
        assert hosts.finish(*others) == [1, 1], hosts.words()


def test_one_way_only(tmp_path, reference):
    """Two hosts, and what the second one sends is lost: the first goes on alone."""
    with cluster(tmp_path, 2) as hosts:
        pair = [hosts.on(index, gate(9), rank=index, workers=1, options=LIVE) for index in (0, 1)]
        pair[1].wait_for_step(9)
        hosts.net.lose_way(1, 0)
        hosts.open(9)
        assert hosts.finish(*pair) == [0, 1], hosts.words()
        assert differs(hosts.out, reference) == ""
