"""Words and beats between launchers, over a real store: in order, once; silence leaves out, and is noticed by both."""

import queue
import time

import pytest

from nodes.test_peer_monitor import KEY, server_that_stands_still
from unisono.errors import ConfigError
from unisono.launchers.spec import LaunchSpec, ScriptTarget
from unisono.launchers.supervision.channels import HostSaid
from unisono.nodes.live.relay import LiveRelay, check_live
from unisono.nodes.peer_monitor import left_out_key
from unisono.nodes.plan import NodesPlan
from unisono.nodes.values import SharedValues
from unisono.store.client import Client
from unisono.store.server import Server, listen

SPANS = (range(2), range(2, 3), range(3, 4))
QUIET_S = 0.8


class Launcher:
    """One end: what it hears, and why it is cut off."""

    def __init__(self, server, node, silence_s):
        self.heard, self.cuts = queue.SimpleQueue(), queue.SimpleQueue()
        self.client = Client("127.0.0.1", server.port, KEY)
        self.values = SharedValues(self.client, "live").guarded(lambda: "" if self.cuts.empty() else "cut off")
        self.relay = LiveRelay(self.values, SPANS, node, silence_s, self.heard.put, self.cuts.put)


@pytest.fixture
def server():
    here = Server(listen("127.0.0.1", 0), KEY)
    yield here
    here.close()


@pytest.fixture
def start(server):
    started = []

    def start(node, silence_s=60.0):
        started.append(Launcher(server, node, silence_s))
        return started[-1]

    yield start
    for one in reversed(started):
        one.relay.close()
        one.client.close()


def test_words_come_in_order_to_whom_they_are_for(start):
    """Both ways, whoever says what first; the last word of who decides is that it is over."""
    deciding, *others = [start(node) for node in range(3)]
    for number in range(20):
        for other in others:
            deciding.relay.send(other.relay.node, {"n": [number, other.relay.node]})
            other.relay.send(0, {"n": number})
    for other in others:
        assert [other.heard.get(timeout=60).message["n"] for _ in range(20)] == [
            [n, other.relay.node] for n in range(20)
        ]
    found = [deciding.heard.get(timeout=60) for _ in range(40)]
    for node in (1, 2):
        assert [said.message["n"] for said in found if said.node == node] == [*range(20)]
    deciding.relay.close()
    assert [other.heard.get(timeout=60) for other in others] == [HostSaid(0, {"over": True})] * 2


def test_a_host_that_falls_silent(start):
    """The deciding one hears of it once; before it is armed, and of a host that beats, nothing. The control is that."""
    deciding, silent = start(0, QUIET_S), start(1)
    silent.relay._stopped.set()
    while deciding.values.look("beat/1") is None:
        deciding.values.put("beat/1", 1)
    with pytest.raises(queue.Empty):
        deciding.heard.get(timeout=2 * QUIET_S)
    deciding.relay.arm(is_on=True)
    assert deciding.heard.get(timeout=60) == HostSaid(1, {"silent": pytest.approx(1.5 * QUIET_S)})
    assert deciding.heard.empty()


def test_a_host_that_has_been_left_out(start):
    """It hears so with its next beat."""
    deciding, other = start(0), start(1)
    deciding.relay.leave_out(1)
    assert "the others go on without it" in other.cuts.get(timeout=60)
    assert other.values.guarded(None).look(left_out_key(1)) is True


def test_the_deciding_host_does_not_answer(start, server):
    """Who hears no answer for the silence is cut off, if armed; the deciding one has not left it out before that."""
    began = time.monotonic()
    with server_that_stands_still(server):
        other = start(1, QUIET_S)
        other.relay.arm(is_on=True)
        assert "has not answered for" in other.cuts.get(timeout=60)
    assert time.monotonic() - began >= QUIET_S


PLAN = NodesPlan(min_nodes=2, max_nodes=2, host="127.0.0.1")


def test_where_workers_may_go_on(capfd):
    """Off where hosts come and go, said once; refused where workers are to join."""
    spec = LaunchSpec(target=ScriptTarget(path="x.py"), workers=2, live="auto")
    assert check_live(spec, PLAN) is spec
    assert check_live(LaunchSpec(target=spec.target), PLAN).live == "off"
    assert capfd.readouterr().err == ""
    elastic = NodesPlan(min_nodes=1, max_nodes=2, host="127.0.0.1")
    assert check_live(spec, elastic).live == "off"
    assert "live recovery is off: hosts come and go (--nnodes 1:2)" in capfd.readouterr().err
    with pytest.raises(ConfigError, match="--spares 1 lets workers join those of one host"):
        check_live(LaunchSpec(target=spec.target, workers=2, live="auto", spares=1), PLAN)
