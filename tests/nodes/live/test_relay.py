"""Words and signs of life between launchers, over real stores: in order, once; a majority leaves out who is lost."""

import contextlib
import queue
import socket
import threading
import time

import pytest

from nodes.test_peer_monitor import KEY, server_that_stands_still
from unisono.errors import ConfigError
from unisono.launchers.spec import LaunchSpec, ScriptTarget
from unisono.launchers.supervision.channels import HostSaid
from unisono.nodes.live.mesh import Places, _Line
from unisono.nodes.live.relay import LiveRelay, check_live
from unisono.nodes.plan import NodesPlan
from unisono.store.server import Server, listen

QUIET_S, HEARTBEAT_S = 0.8, 1.6
LOST = {"silent": True}


class Launcher:
    """One end: what it hears, and why it is cut off."""

    def __init__(self, node, servers, silence_s, heartbeat_s, cut):
        self.heard, self.cuts, self.server = queue.SimpleQueue(), queue.SimpleQueue(), servers[node]
        ports = [0 if {node, other} == cut else server.port for other, server in enumerate(servers)]
        places = Places([("127.0.0.1", port) for port in ports], KEY)
        spans = [range(number, number + 1) for number in range(len(servers))]
        self.relay = LiveRelay(places, spans, node, (silence_s, heartbeat_s), self.heard.put, self.cuts.put)

    def die(self):
        """Be gone, without a word."""
        self.relay._stopped.set()
        self.relay._mesh._stopped.set()
        self.server.close()


@pytest.fixture
def start():
    """Start so many launchers."""
    started = []

    def start(count, silence_s=60.0, heartbeat_s=60.0, cut=frozenset()):
        servers = [Server(listen("127.0.0.1", 0), KEY) for _ in range(count)]
        started.extend(Launcher(node, servers, silence_s, heartbeat_s, cut) for node in range(count))
        return started

    yield start
    closing = [threading.Thread(target=one.relay.close) for one in started]  # each waits for those that are gone
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()
    for one in started:
        one.server.close()


def arm(*launchers):
    for one in launchers:
        one.relay.arm(is_on=True)


def test_words_come_in_order_to_whom_they_are_for(start):
    """Both ways, whoever says what first; the last word of who decides is that it is over."""
    deciding, *others = start(3)
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


@contextlib.contextmanager
def answering_nobody(*launchers):
    """Let stores answer nothing meanwhile, also to those that are connected."""
    going_on = threading.Event()
    for server in (one.server for one in launchers):
        attend = server._attend
        server._attend = lambda peer, attend=attend: (going_on.wait(), attend(peer))
    try:
        yield
    finally:
        going_on.set()


def test_what_has_not_been_said_in_the_end(start):
    """A launcher that stands still while the deciding one ends hears its last words later, in order, once."""
    first, second = start(2)
    with answering_nobody(second):
        for number in range(3):
            first.relay.send(1, {"n": number})
        first.relay.close()
    words = [second.heard.get(timeout=60).message for _ in range(4)]
    assert words == [{"n": 0}, {"n": 1}, {"n": 2}, {"over": True}]
    with pytest.raises(queue.Empty):
        second.heard.get(timeout=0.5)


def test_a_connection_that_breaks(start):
    """Words of others are heard all the same, in order, once."""
    first, second = start(2)
    for number in range(20):
        for peer in list(first.server._peers):
            with contextlib.suppress(OSError):  # it has been closed just now
                peer.sock.shutdown(socket.SHUT_RDWR)
        second.relay.send(0, {"n": number})
        assert first.heard.get(timeout=60).message == {"n": number}
    assert first.heard.empty()


def test_an_answer_to_an_old_question(start):
    """It does not make that silence count which is to be forgotten."""
    first, second = start(2)
    mesh = first.relay._mesh
    with answering_nobody(second):
        time.sleep(1)
        since = time.monotonic()
        mesh.forget()
    while time.monotonic() < since + 1:
        silent_s = mesh.silent_s()[1]
        assert silent_s <= time.monotonic() - since
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("is_asked_again", [True, False])
def test_a_connection_that_stands_still(start, monkeypatch, is_asked_again):
    """As while TCP waits to send a lost packet again: another connection is answered; the control: none is made."""
    silence_s = 3.0 if is_asked_again else 1.0
    if not is_asked_again:
        monkeypatch.setattr(_Line, "ask_on", lambda line, late_s: None)
    first, second = start(2, silence_s)
    while sum(peer.read is not None for peer in [*second.server._peers]) < 2:  # its own connection, and the first one's
        time.sleep(0.01)
    old, attend = {*second.server._peers}, second.server._attend
    second.server._attend = lambda peer: time.sleep(0.01) if peer in old else attend(peer)
    longest, end = 0.0, time.monotonic() + 1.5 * silence_s
    while time.monotonic() < end:
        longest = max(longest, first.relay._mesh.silent_s()[1])
        time.sleep(0.01)
    second.server._attend = attend
    assert (longest < silence_s) == is_asked_again


@pytest.mark.slow
def test_a_host_that_is_cut_off_ends_nothing(start):
    """The deciding one, which hears no majority, does not say that all is over, though the others are back in time."""
    first, second, third = start(3, QUIET_S)
    arm(first)
    with answering_nobody(second, third):
        assert "no majority of the 3" in first.cuts.get(timeout=60)
    first.relay.close()
    for other in (second, third):
        with pytest.raises(queue.Empty):
            other.heard.get(timeout=1)


def test_a_host_that_falls_silent(start):
    """The others agree, and the deciding one hears of it once; before it is armed, nobody does. That is the control."""
    first, second, third = start(3, QUIET_S)
    since = time.monotonic() - 1  # a question may have been asked a moment before
    third.die()
    with pytest.raises(queue.Empty):
        first.heard.get(timeout=2 * QUIET_S)
    arm(first, second)
    assert first.heard.get(timeout=60) == HostSaid(2, LOST)
    assert (first.relay.hosts, first.relay.decider) == ((0, 1), 0)
    assert 1.5 * QUIET_S <= first.relay.gone[2] <= time.monotonic() - since
    first.relay.send(1, {"n": 1})  # behind the decree
    assert second.heard.get(timeout=60) == HostSaid(0, {"n": 1})
    assert second.relay.hosts == (0, 1)
    assert first.heard.empty()
    assert first.cuts.empty()
    assert second.cuts.empty()


def test_the_deciding_host_is_lost(start):
    """The others agree on the lowest-numbered of them; what it says is heard behind that."""
    first, second, third = start(3, QUIET_S)
    arm(first, second, third)
    began = time.monotonic()
    first.die()
    succeeds = HostSaid(1, {"succeeds": (1, 2)})
    assert second.heard.get(timeout=60) == succeeds
    second.relay.send(2, {"n": 1})
    assert [third.heard.get(timeout=60) for _ in range(2)] == [succeeds, HostSaid(1, {"n": 1})]
    assert time.monotonic() - began >= 1.5 * QUIET_S - 0.2  # asked for the last time a moment before
    assert [one.relay.decider for one in (second, third)] == [1, 1]
    assert [[*one.relay.gone] for one in (second, third)] == [[0], [0]]
    assert (second.relay.gone[0] >= 1.5 * QUIET_S, third.relay.gone[0] >= QUIET_S) == (True, True)
    third.die()  # of these two, the one that decides goes on alone
    assert second.heard.get(timeout=60) == HostSaid(2, LOST)
    assert second.relay.hosts == (1,)
    assert second.cuts.empty()


@pytest.mark.slow
def test_a_host_without_workers_does_not_decide(start):
    """The deciding host is lost: the third one decides, and goes on alone when the second one is lost, too."""
    first, second, third = start(3, QUIET_S)
    for launcher, is_idle in ((second, True), (third, True), (third, False)):  # the third one has a worker again
        launcher.relay.rest(is_idle=is_idle)
    third.relay.send(1, {"n": 1})
    assert second.heard.get(timeout=60) == HostSaid(2, {"n": 1})
    second.relay.send(2, {"n": 1})
    assert third.heard.get(timeout=60) == HostSaid(1, {"n": 1})
    arm(first, second, third)
    first.die()
    assert [one.heard.get(timeout=60) for one in (second, third)] == [HostSaid(2, {"succeeds": (1, 2)})] * 2
    second.die()
    assert third.heard.get(timeout=60) == HostSaid(1, LOST)
    assert (third.relay.hosts, third.relay.decider, third.cuts.empty()) == ((2,), 2, True)


@pytest.mark.slow
def test_two_that_do_not_hear_each_other(start):
    """The higher-numbered one ends, and the other goes on with the deciding one, which hears both."""
    first, second, third = start(3, QUIET_S, cut={1, 2})
    arm(first, second, third)
    assert "host 1 has not answered for" in third.cuts.get(timeout=60)
    third.relay.close()
    third.server.close()
    assert first.heard.get(timeout=60) == HostSaid(2, LOST)
    first.relay.send(1, {"n": 1})  # behind the decree
    assert second.heard.get(timeout=60) == HostSaid(0, {"n": 1})
    assert (second.relay.hosts, second.cuts.empty()) == ((0, 1), True)


def without_keeper(start):
    """Return the second and the third of three launchers, when they go on without the first."""
    first, second, third = start(3, QUIET_S, heartbeat_s=HEARTBEAT_S)
    arm(first, second, third)
    first.die()
    for other in (second, third):
        assert "succeeds" in other.heard.get(timeout=60).message
    return second, third


@pytest.mark.slow
def test_nobody_keeps_the_store(start):
    """A host that is lost when workers cannot go on without it ends them: no peer monitor hears of it any more."""
    second, third = without_keeper(start)
    second.relay.arm(is_on=False)
    third.die()
    assert "host 2 has not answered for" in second.cuts.get(timeout=60)
    assert (second.heard.empty(), second.relay.hosts) == (True, (1, 2))


@pytest.mark.slow
def test_the_deciding_host_is_gone_when_all_is_over(start):
    """Its silence means nothing to one that has not got round to its last word; the control is above."""
    second, third = without_keeper(start)
    second.relay.close()
    second.server.close()
    with pytest.raises(queue.Empty):
        third.cuts.get(timeout=1.7 * HEARTBEAT_S)
    assert third.heard.get(timeout=60) == HostSaid(1, {"over": True})
    assert not third.relay.is_armed


def test_of_two_the_first_is_lost(start):
    """The other one is no majority: it is to stop within the silence, and nobody succeeds."""
    first, second = start(2, QUIET_S)
    arm(first, second)
    first.die()
    why = second.cuts.get(timeout=60)
    assert "host 0 has not answered for" in why
    assert "no majority of the 2" in why
    assert (second.heard.empty(), second.relay.hosts) == (True, (0, 1))


def test_one_of_three_is_alone(start):
    """Also the deciding one stops, when the two others do not answer."""
    first, second, third = start(3, QUIET_S)
    arm(first)
    second.die()
    third.die()
    why = first.cuts.get(timeout=60)
    assert "host 1 has not answered for" in why
    assert "host 2 has not answered for" in why
    assert (first.heard.empty(), first.relay.hosts) == (True, (0, 1, 2))


def test_a_host_that_has_been_left_out(start):
    """Whose store stands still is left out, though it asks on; it hears so with its next question."""
    first, second, third = start(3, QUIET_S)
    arm(first, second)  # the third has not heard yet that silence counts
    with (
        server_that_stands_still(third.server),
        socket.create_connection(("127.0.0.1", third.server.port)),  # at which it stands still
    ):
        assert first.heard.get(timeout=60) == HostSaid(2, LOST)
        assert "the others go on without it" in third.cuts.get(timeout=60)
    assert third.relay.hosts == (0, 1, 2)


def test_who_hears_the_deciding_host_votes_for_nobody_else(start):
    """A host that does not reach the deciding one cannot put another in its place, while a majority does."""
    first, second, third = start(3)
    second.relay._vote(2, 1)
    assert (second.relay._side.promised, first.cuts.empty(), third.cuts.empty()) == (0, True, True)
    second.relay._vote(0, 1)
    assert second.relay._side.promised == 1


PLAN = NodesPlan(min_nodes=2, max_nodes=2, host="127.0.0.1")


def test_where_workers_may_go_on(capfd):
    """Off where hosts come and go, said once; refused where their number is to change, or spares could not join."""
    spec = LaunchSpec(target=ScriptTarget(path="x.py"), workers=2, live="auto")
    assert check_live(spec, PLAN) is spec
    assert check_live(LaunchSpec(target=spec.target), PLAN).live == "off"
    assert capfd.readouterr().err == ""
    elastic = NodesPlan(min_nodes=1, max_nodes=2, host="127.0.0.1")
    assert check_live(spec, elastic).live == "off"
    assert "live recovery is off: hosts come and go (--nnodes 1:2)" in capfd.readouterr().err
    spares = LaunchSpec(target=spec.target, live="auto", spares=1)  # one worker, which has others there
    assert check_live(spares, PLAN) is spares
    with pytest.raises(ConfigError, match=r"--spares 1 .* where hosts come and go \(--nnodes 1:2\)"):
        check_live(spares, elastic)
    bounds = LaunchSpec(target=spec.target, workers=2, live="auto", elastic="1:2")
    assert check_live(bounds, PLAN) is bounds
    with pytest.raises(ConfigError, match=r"--elastic 1:2 .* where hosts come and go \(--nnodes 1:2\)"):
        check_live(bounds, elastic)
