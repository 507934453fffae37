"""Two and three hosts in namespaces of their own: equal bits over a network that is cut, slow, or loses a host."""

import contextlib
import sys
import time

import pytest

from cluster.namespaces import network
from hosts import Hosts, differs, gate, result_of, train_alone

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

TRUST = ("--trust-network",)
ELASTIC = ("--trust-network", "--heartbeat", "8")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return train_alone(tmp_path_factory.mktemp("reference"))


class Cluster(Hosts):
    """Launchers in namespaces."""

    def __init__(self, folder, net):
        super().__init__(folder, net.addresses[0])
        self.env["UNISONO_SECRET"] = "the-same-word-on-all-hosts"
        self.net = net

    def on(self, index, *arguments, **settings):
        settings = {"options": TRUST, "workers": 2, **settings}
        name = f"h{index + 1}-{len(self.started)}"
        return self.start(name, *arguments, within=self.net.within(index), **settings)


@contextlib.contextmanager
def cluster(folder, num_hosts):
    with network(num_hosts) as net:
        here = Cluster(folder, net)
        try:
            yield here
        finally:
            here.close()  # before the network goes


def test_two_hosts_with_two_ranks_each(tmp_path, reference):
    """Two hosts, two ranks each, directories of their own: the bits of one process, through the hierarchy."""
    with cluster(tmp_path, 2) as hosts:
        first, second = (hosts.on(index, rank=index, out="own") for index in (0, 1))
        assert hosts.finish() == [0, 0], hosts.words()
        for host in (first, second):
            assert differs(host.folder / "own", reference) == ""
            assert "over eth0" in host.err
        result = result_of(first.folder / "own")
        assert result["world_size"] == 4
        # Rank by rank each would send 3/4 of the 610 gradients twice; through the hierarchy half of them.
        assert max(result["bytes_sent_per_step"]) < 1.5 * 4 * 610
        assert "is a directory of its own for each host: ranks 0, 2" in first.err


def test_three_hosts(tmp_path, reference):
    """Three hosts on a directory that all see; four replicas on three ranks."""
    with cluster(tmp_path, 3) as hosts:
        for index in range(3):
            hosts.on(index, nodes="3", rank=index, workers=1)
        assert hosts.finish() == [0, 0, 0], hosts.words()
        assert differs(hosts.out, reference) == ""
        assert "is one directory for all 3 hosts" in hosts.words()


def test_a_link_that_is_down_for_two_seconds(tmp_path, reference):
    """Connections survive: no restart, equal."""
    with cluster(tmp_path, 2) as hosts:
        for index in (0, 1):
            hosts.on(index, gate(6), rank=index)
        hosts.started[1].wait_for_step(6)
        hosts.net.link(1, "down")
        hosts.open(6)
        time.sleep(2)  # the fault itself
        hosts.net.link(1, "up")
        assert hosts.finish() == [0, 0], hosts.words()
        assert differs(hosts.out, reference) == ""
        assert "attempt 1" not in hosts.words()


def test_a_link_that_stays_down(tmp_path):
    """Both hosts end in time, each with what it knows; no process is left."""
    with cluster(tmp_path, 2) as hosts:
        for index in (0, 1):
            hosts.on(index, gate(4), rank=index, options=ELASTIC)
        pids = [one.pid for host in hosts.started for one in host.wait_for_step(4)]
        hosts.net.link(1, "down")
        began = time.monotonic()
        codes = hosts.finish(timeout_s=60)
        assert 0 not in codes, hosts.words()
        assert time.monotonic() - began < 40
        assert "does not answer any more" in hosts.started[0].err
        assert "lost the rendezvous" in hosts.started[1].err
        assert not [pid for pid in pids if _is_alive(pid)]


def test_a_connection_that_is_cut_one_way(tmp_path):
    """Half-open: the other direction still works, and the heartbeat notices all the same."""
    with cluster(tmp_path, 2) as hosts:
        for index in (0, 1):
            hosts.on(index, gate(4), rank=index, options=ELASTIC)
        hosts.started[1].wait_for_step(4)
        hosts.net.lose_way(1, 0)
        began = time.monotonic()
        codes = hosts.finish(timeout_s=60)
        assert 0 not in codes, hosts.words()
        assert time.monotonic() - began < 40


def test_a_host_whose_processes_are_killed(tmp_path, reference):
    """Its launcher too, at one blow; it is started again, and the others have waited for it: equal."""
    options = (*ELASTIC, "--max-restarts", "2")
    with cluster(tmp_path, 2) as hosts:
        first, second = (hosts.on(index, gate(10), rank=index, options=options) for index in (0, 1))
        second.wait_for_step(10)
        second.kill_everything()
        first.wait_for_words("does not answer any more")
        hosts.open(10)
        again = hosts.on(1, rank=1, options=options)
        assert hosts.finish(first, again) == [0, 0], hosts.words()
        assert differs(hosts.out, reference) == ""
        assert result_of(hosts.out)["resumed_from_step"] >= 4


def test_a_host_that_never_comes_back(tmp_path, reference):
    """Where hosts may go, the others finish without it; where not, they say who is missing, in time."""
    with cluster(tmp_path, 3) as hosts:
        elastic = {"nodes": "2:3", "options": ELASTIC, "workers": 1}
        for index in range(3):
            hosts.on(index, gate(6), **elastic)
        hosts.started[2].wait_for_step(6)
        hosts.started[2].kill_everything()
        hosts.open(6)
        assert hosts.finish(*hosts.started[:2]) == [0, 0], hosts.words()
        assert differs(hosts.out, reference) == ""
        assert result_of(hosts.out)["world_size"] == 2
    with cluster(tmp_path / "fixed", 2) as hosts:
        options = (*ELASTIC, "--max-restarts", "1", "--rdzv-timeout", "8")
        for index in (0, 1):
            hosts.on(index, gate(6), rank=index, options=options)
        hosts.started[1].wait_for_step(6)
        hosts.started[1].kill_everything()
        assert hosts.started[0].finish(60) == 2, hosts.words()
        assert "expected 2 hosts (--nnodes) within 8 s" in hosts.started[0].err


def test_a_host_that_joins_late(tmp_path, reference):
    """One begins; the other is used from the next step boundary on, with nothing lost: equal."""
    with cluster(tmp_path, 2) as hosts:
        first = hosts.on(0, gate(5), nodes="1:2", options=ELASTIC)
        first.wait_for_step(5)
        second = hosts.on(1, gate(5), nodes="1:2", options=ELASTIC)
        first.wait_until_asked()
        hosts.open(5)
        assert hosts.finish() == [0, 0], hosts.words()
        assert differs(hosts.out, reference) == ""
        result = result_of(hosts.out)
        assert result["world_size"] == 4
        assert result["resumed_from_step"] == 5
        assert "attempt 1: 2 hosts" in second.err


def test_a_hundred_megabit(tmp_path, reference):
    """Slower, equal."""
    with cluster(tmp_path, 2) as hosts:
        hosts.net.slow_down("100mbit")
        for index in (0, 1):
            hosts.on(index, rank=index)
        assert hosts.finish() == [0, 0], hosts.words()
        assert differs(hosts.out, reference) == ""


def test_a_slow_link_is_measured_and_local_sgd_proposed(tmp_path):
    """At 1 Mbit talking every eighth step is clearly faster: proposed with its price, and nothing is changed."""
    with cluster(tmp_path, 2) as hosts:
        hosts.net.slow_down("1mbit")
        for index in (0, 1):
            meet = ["--nnodes", "2", "--node-rank", str(index), "--rdzv-endpoint", hosts.endpoint, *TRUST]
            command = [sys.executable, "-m", "unisono", "bench", "links", "digits", "--ways", "local_sgd", *meet]
            hosts.launch(f"h{index}", [*hosts.net.within(index), *command, "-r", "1", "--steps", "16"])
        assert hosts.finish() == [0, 0], hosts.words()
        for host in hosts.started:
            told = host.out_file.read_text()
            assert "local_sgd: " in told and "ranks train alone for 8 steps" in told
            assert told.endswith("proposed: unisono train digits --strategy allreduce --sync-every 8\n")


def test_hosts_that_cannot_talk(tmp_path):
    """The second and third host reach the first but not each other: the pair is named on all, before training."""
    with cluster(tmp_path, 3) as hosts:
        hosts.net.lose_way(1, 2)
        for index in range(3):
            hosts.on(index, nodes="3", rank=index, workers=1)
        assert hosts.finish(timeout_s=90) == [2, 2, 2], hosts.words()
        for host in hosts.started:
            assert "some hosts cannot talk to each other" in host.err
            assert "node rank 1 (" in host.err and "cannot reach node rank 2 (" in host.err


def test_an_untrusted_network(tmp_path):
    """Without --trust-network nothing is opened, and the reason is given."""
    with cluster(tmp_path, 1) as hosts:
        refused = hosts.on(0, rank=0, options=())
        assert refused.finish(60) == 2
        assert "can read and change gradients" in refused.err and "--trust-network" in refused.err


def _is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - one line, often
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
