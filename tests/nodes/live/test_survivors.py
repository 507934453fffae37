"""Launchers that have lost the host with the rendezvous agree over a real store how they go on: one verdict for all."""

import threading
from dataclasses import replace

import pytest

from nodes.test_peer_monitor import KEY
from unisono.errors import PeerLost
from unisono.launchers.supervision.restarts import Ending
from unisono.nodes.live.mesh import Places
from unisono.nodes.live.survivors import Survivors, agree, alone, without_host
from unisono.nodes.verdicts import NodeEnding, Verdict, judge
from unisono.store.server import Server, listen

FAILED = NodeEnding(
    kind="failed",
    message="rank 1 failed",
    exit_code=1,
    ending=Ending(rank=0, what="rank 1 failed.", error="ValueError"),
)
ENDED = NodeEnding(kind="ended")
HINT = "Hint: the same commands on all hosts go on from the last checkpoint."


@pytest.fixture
def meet():
    """Let the second, the third and the fourth of four hosts agree; the third one decides."""
    server = Server(listen("127.0.0.1", 0), KEY)
    nowhere = "127.0.0.1", 1
    places = Places([nowhere, nowhere, ("127.0.0.1", server.port), nowhere], KEY)

    def meet(endings, max_restarts=1, wait_s=60.0):
        found, asked = {}, []

        def rule(told):
            asked.append(told)
            return judge(told, "abc", [], min_nodes=1, is_elastic=True, max_restarts=max_restarts, keeper=1)

        def one(node, ending):
            found[node] = agree(Survivors((1, 2, 3), 2, node, places), ending, rule, wait_s, lambda: "")

        threads = [threading.Thread(target=one, args=pair, daemon=True) for pair in endings.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        (told,) = asked
        return found, [ending.kind for ending in told]

    yield meet
    server.close()


def test_all_start_again(meet):
    """One verdict and one place for all; an ending is heard whole."""
    found, kinds = meet({1: FAILED, 2: ENDED, 3: ENDED})
    assert kinds == ["failed", "ended", "ended"]
    assert len({str(one) for one in found.values()}) == 1
    verdict, meeting = found[3]
    assert (verdict.what, meeting.hosts, meeting.port > 0) == ("again", [1, 2, 3], True)
    assert "Restart 1 on all hosts from the last checkpoint" in verdict.text
    assert verdict.history


def test_one_has_not_ended_in_time(meet):
    """It is taken for lost, and the others go on without it."""
    found, kinds = meet({1: FAILED, 2: ENDED}, wait_s=0.5)
    assert kinds == ["failed", "ended", "lost"]
    assert [meeting.hosts for _, meeting in found.values()] == [[1, 2], [1, 2]]


def test_one_has_been_asked_to_stop(meet):
    """It leaves, and is named by its place in the attempt; the others meet."""
    found, _ = meet({1: NodeEnding(kind="ended", signum=15), 2: ENDED, 3: ENDED})
    assert {(verdict.what, *verdict.leaving) for verdict, _ in found.values()} == {("again", 1)}
    assert [meeting.hosts for _, meeting in found.values()] == [[2, 3]] * 3


def test_no_restart_is_left(meet):
    """All say the same, and nobody meets."""
    found, _ = meet({1: FAILED, 2: ENDED, 3: ENDED}, max_restarts=0)
    assert [(verdict.what, meeting.port) for verdict, meeting in found.values()] == [("failed", 0)] * 3


def test_nobody_decides():
    """The launcher that decides is gone, or does not say anything: it is said so, and nobody waits for ever."""
    server = Server(listen("127.0.0.1", 0), KEY)
    places = Places([("127.0.0.1", server.port)] * 2, KEY)
    left = Survivors((0, 1), 0, 1, places)
    with pytest.raises(PeerLost, match="host 0, which decides, has not said"):
        agree(left, ENDED, lambda endings: Verdict(what="done"), -4.5, lambda: "")
    server.close()
    with pytest.raises(PeerLost, match=r"no connection|broke"):
        agree(left, ENDED, lambda endings: Verdict(what="done"), 60.0, lambda: "")


@pytest.mark.parametrize(
    ("mine", "what"),
    [
        (NodeEnding(kind="done"), "done"),
        (NodeEnding(kind="stopped", step=4), "stopped"),
        (NodeEnding(kind="interrupted", signum=15), "interrupted"),
        (FAILED, "failed"),
    ],
)
def test_nobody_is_asked(mine, what):
    """Each host says how it ended there; the failure with how to go on."""
    verdict = alone(mine, " So.", "the host is lost")
    assert (verdict.what, verdict.step) == (what, mine.step)
    assert verdict.exit_code == {"failed": 1, "interrupted": 143}.get(what, 0)
    assert verdict.text == {"interrupted": "this host was asked to stop.", "failed": f"rank 1 failed\n{HINT} So."}.get(
        what, ""
    )
    for again in (ENDED, replace(FAILED, ending=Ending(rank=-1, what="x"))):
        with pytest.raises(PeerLost, match="the host is lost"):
            alone(again, " So.", "the host is lost")


def test_how_to_go_on():
    """Each host is told its own options; the one that decides keeps the rendezvous."""
    told = [without_host((1, 2), 2, node, "10.0.0.3") for node in (1, 2)]
    assert ["--nnodes 2 --node-rank 1 --rdzv-endpoint 10.0.0.3:29400" in told[0], "--node-rank 0" in told[1]] == [
        True
    ] * 2
    elastic = without_host((1, 2), 1, 2, "10.0.0.2", is_elastic=True)
    assert elastic.endswith("the same command with --rdzv-endpoint 10.0.0.2:29400.")
    assert "without --nnodes" in without_host((1,), 1, 1, "10.0.0.2")
