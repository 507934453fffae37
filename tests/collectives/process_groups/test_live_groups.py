"""Ranks that gloo joins die in any place of a step: the others finish it with the same bits, and others join them."""

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch.distributed import FileStore, HashStore, ProcessGroupGloo

from train.steps.test_membership import check, check_gan, play, undisturbed
from unisono.collectives.process_groups import live_groups
from unisono.collectives.process_groups.live_groups import LiveGroups, LiveGroupTransport
from unisono.collectives.process_groups.own_store import OwnStore
from unisono.collectives.shm.live_boards import LetGo
from unisono.errors import PeerLost
from unisono.launchers.worker.live_member import WorldChanged
from unisono.store.client import Client
from unisono.store.secret import key_of
from unisono.store.server import Server, listen

GLOO = {"checkpoint_every": 1000, "transport": "gloo"}
MEETINGS = 3  # parts of a step's exchange: what the ranks agree by, the only bucket, the seal
WHENS = ("before", "inside", "told", "after")
PAIRS = ((0, 1), (1, 2), (2, 0))  # each rank of three, and then each of two
KEY, MINUTE = key_of("of these tests, long enough"), timedelta(minutes=1)
pytestmark = pytest.mark.timeout(1300)


def test_two_ranks_die_and_others_join():
    """One dies before a meeting, one when its data are complete; one joins in the place of the first."""
    kills = {"1": [[3, 1, "before"]], "2": [[6, 3, "inside"]]}
    (found,) = play([[3, kills, GLOO | {"awaits": [5]}, [], 1, 0]])
    assert found["codes"] == {"0": 0, "1": -9, "2": -9, "3": 0}
    _same(found)
    assert {meetings for told in found["told"].values() for meetings in told["meetings"][:1]} == {MEETINGS}


def test_data_that_have_reached_some_ranks_only():
    """The report of a step reaches one of two survivors: none of them takes the step for done."""
    (found,) = play([[3, {}, GLOO | {"parts": [4, True]}]])
    assert found["codes"] == {"0": 0, "1": 0, "2": -9}
    check(found, [0, 1])


def test_ranks_that_seal_nothing_are_found():
    """Negative control of the above: who has the data goes on at once, and the other one cannot finish the step."""
    (found,) = play([[3, {}, GLOO | {"parts": [4, False]}]])
    assert found["errors"]


@pytest.mark.slow
def test_every_rank_dies_at_every_meeting():
    """Before a meeting, with its data complete, having said so, and behind it; in worlds of three and of two."""
    places = itertools.product(range(1, MEETINGS + 1), WHENS, PAIRS)
    trials = [
        [3, {str(first): [[2, meeting, when]], str(second): [[5, meeting, when]]}, GLOO]
        for meeting, when, (first, second) in places
    ]
    for trial, found in zip(trials, play(trials), strict=True):
        assert sorted(found["codes"].values()) == [-9, -9, 0], (trial, found)
        check(found, [rank for rank in range(3) if str(rank) not in trial[1]])


@pytest.mark.slow
def test_ranks_die_between_two_buckets():
    """Gradients leave in several buckets while others are computed; helper threads of the others wait for the rest."""
    places = zip(itertools.product((2, 3, 4), ("before", "inside", "after")), itertools.cycle(PAIRS), strict=False)
    trials = [
        [3, {str(first): [[3, meeting, when]], str(second): [[6, meeting, when]]}, GLOO | {"cut": True}]
        for (meeting, when), (first, second) in places
    ]
    for trial, found in zip(trials, play(trials), strict=True):
        assert sorted(found["codes"].values()) == [-9, -9, 0], (trial, found)
        check(found, [rank for rank in range(3) if str(rank) not in trial[1]])
        assert all(told["meetings"][0] > MEETINGS + 2 for told in found["told"].values()), found


@pytest.mark.slow
def test_deaths_in_updates_of_two_optimizers():
    """At each part of both exchanges, and between them; one joins in the place of the first."""
    places = [*itertools.product(range(1, 2 * MEETINGS + 1), ("before", "told")), ("apply", "after")]
    settings = GLOO | {"case": "gan", "awaits": [4]}
    trials = [
        [3, {str(first): [[3, place, when]], str(second): [[6, place, when]]}, settings, [], 1, 0]
        for (place, when), (first, second) in zip(places, itertools.cycle(PAIRS), strict=False)
    ]
    for trial, found in zip(trials, play(trials), strict=True):
        check_gan(found)
        assert found["counts"] == {"world_size": 2, "deaths": 2, "joins": 1}, trial


@pytest.mark.slow
def test_deaths_around_the_step():
    """Two within one recovery, the leader's while it commits, writes the end, or a share; and the world is resized."""
    saves = {"checkpoint_every": 2, "transport": "gloo"}
    found = play(
        [
            [3, {"2": [[4, 1, "before"]], "1": [[4, 2, "before"]]}, GLOO],
            [3, {"2": [[4, 1, "before"]], "1": [[4, 4, "inside"]]}, GLOO],
            [3, {"0": [[4, "receipt", "before"]]}, saves | {"shares": True}],
            [3, {"0": [[10, "result", "before"]]}, saves],
            [3, {}, GLOO | {"asks": [[3, 1], [6, 3]], "awaits": [7]}],
        ]
    )
    for each, left in zip(found, ([0], [0], [1, 2]), strict=False):
        check(each, left)
    check(found[3], [1, 2], last=3)  # all steps were done
    assert [each["codes"]["0"] for each in found] == [0, 0, -9, -9, 0]
    _same(found[-1])
    assert found[-1]["answers"][-1]["workers"] == 3


class Called:
    """A member that is called to another world when the test says so."""

    number, is_called = 0, False

    def at(self, meeting):
        raise WorldChanged

    def await_call(self):
        """The ranks did not connect."""


class Late:
    """A collective that is done, or has failed, just when its first wait is over."""

    def __init__(self, fails=False):
        self.num_waits, self.fails = 0, fails

    def wait(self, timeout):
        self.num_waits += 1
        if self.num_waits == 1:
            time.sleep(timeout.total_seconds())
            raise RuntimeError("Operation timed out!")
        if self.fails:
            raise RuntimeError("Connection closed")

    def is_completed(self):
        return self.num_waits > 0


def test_a_collective_that_is_done_when_its_wait_is_over():
    """It is done: whoever took it for failed would leave the others alone, and nobody has died."""
    group = ProcessGroupGloo(HashStore(), 0, 1, MINUTE)
    waits = LiveGroupTransport(group)._waits
    waits.wait(work := Late(), timedelta(seconds=0.1))
    assert work.num_waits == 2
    with pytest.raises(RuntimeError, match="Connection closed"):
        waits.wait(Late(fails=True), timedelta(seconds=0.1))


def connecting(monkeypatch, member, seconds):
    """Return the groups of a rank that connects with one that has come and is lost just then."""
    monkeypatch.setattr(live_groups, "_CONNECT_S", seconds)
    groups = LiveGroups(lambda *_: store, None, member)
    store = HashStore()
    store.set("here/1", "")
    return groups


def test_a_rank_is_lost_while_others_connect(monkeypatch):
    """They do not wait for it when they are called to another world."""
    member = Called()
    groups, began = connecting(monkeypatch, member, 10), time.monotonic()
    threading.Timer(0.5, lambda: setattr(member, "is_called", True)).start()
    with pytest.raises(WorldChanged):
        groups._connect("e1", 0, 2, 1)
    assert 0.4 < time.monotonic() - began < 9


PEER = """
import os, signal, sys, torch, torch.distributed as dist
from unisono.collectives.process_groups.live_groups import LiveGroupTransport
group = dist.ProcessGroupGloo(dist.FileStore(sys.argv[1], 2), 1, 2)
exchange = LiveGroupTransport(group).make_exchange()
mine = torch.full((1 << 24,), 2.0)
exchange.start([torch.empty_like(mine)], [range(1), range(1, 2)], 2)
exchange.give([((1, 2), mine)])
exchange._sends[0].wait()
os.kill(os.getpid(), signal.SIGSTOP)
"""
"""Gives its part of a sum, and takes no other."""


SENDER = PEER.partition("exchange._sends")[0].replace("24", "26") + "signal.pause()"
"""Gives a large part of a sum, and waits for the end."""


@pytest.mark.slow
def test_a_rank_dies_while_it_sends(tmp_path, monkeypatch):
    """Nothing ends the wait for the rest of its message, the control, but this rank goes on when it is called."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    member, mine, out = Called(), torch.ones(1 << 26), torch.zeros(1 << 26)
    before = {*threading.enumerate()}

    def kill():
        while out[0] == 0:
            time.sleep(0)
        peer.kill()
        threading.Timer(0.5, lambda: setattr(member, "is_called", True)).start()

    with subprocess.Popen([sys.executable, "-c", SENDER, str(tmp_path / "store")]) as peer:
        group = ProcessGroupGloo(FileStore(str(tmp_path / "store"), 2), 0, 2, timedelta(seconds=8))
        transport = LiveGroupTransport(group, timeout_s=4)
        transport.live = member
        exchange = transport.make_exchange()
        exchange.start([out], [range(1), range(1, 2)], 2)
        exchange.give([((0, 1), mine)])
        threading.Thread(target=kill).start()
        with pytest.raises(LetGo):
            exchange.finish()
    assert (out == 0).any()
    (waiting,) = [each for each in {*threading.enumerate()} - before if each.name == "unisono-arrive"]
    began = time.monotonic()
    transport.close()
    assert time.monotonic() - began < 1
    waiting.join(1)
    assert waiting.is_alive()
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.slow
def test_a_rank_dies_while_a_partial_sum_is_on_its_way_to_it(tmp_path, monkeypatch):
    """Nothing ends the wait of that message, the control, but this rank adds without it, and goes on when called."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with subprocess.Popen([sys.executable, "-c", PEER, str(tmp_path / "store")]) as peer:
        group = ProcessGroupGloo(FileStore(str(tmp_path / "store"), 2), 0, 2, timedelta(seconds=8))
        transport = LiveGroupTransport(group)
        transport.live = member = Called()
        exchange, mine, out = transport.make_exchange(), torch.ones(1 << 24), torch.zeros(1 << 24)
        placement = [range(1), range(1, 2)]
        assert exchange.lies_apart(placement, 2)
        exchange.start([out], placement, 2)
        os.waitid(os.P_PID, peer.pid, os.WSTOPPED)
        exchange.give([((0, 1), mine)])
        by_itself = threading.Thread(target=_wait, args=exchange._sends, daemon=True)
        by_itself.start()
        exchange.finish()
        assert (out == 3).all()
        report = exchange.tell(torch.ones(1, dtype=torch.uint8))
        peer.kill()
    threading.Timer(0.5, lambda: setattr(member, "is_called", True)).start()
    with pytest.raises(LetGo):
        report()
    transport.close()
    by_itself.join(1.5)
    assert by_itself.is_alive()


def _wait(work):
    with contextlib.suppress(RuntimeError):
        work.wait()


@pytest.mark.slow
@pytest.mark.parametrize("is_cut", [True, False])
def test_the_thread_that_connects_is_left_behind(monkeypatch, is_cut):
    """It waits for a place that a lost rank has not told, and ends soon; the control: not where nothing cuts it off."""
    monkeypatch.setattr(live_groups, "_CONNECT_S", 60.0)
    member, before = Called(), {*threading.enumerate()}
    server = Server(listen("127.0.0.1", 0), KEY)
    client = Client("127.0.0.1", server.port, KEY)
    client.ask(b"set", b"here/1", b"")
    kept = []

    def store(name, size, cut_off):
        kept.append(OwnStore(client, MINUTE, cut_off if is_cut else None))
        return kept[-1]

    groups = LiveGroups(store, None, member)
    threading.Timer(0.5, lambda: setattr(member, "is_called", True)).start()
    with pytest.raises(WorldChanged):
        groups._connect("e1", 0, 2, 1)
    (thread,) = (one for one in {*threading.enumerate()} - before if one.name.startswith("unisono-connect"))
    thread.join(30 if is_cut else 3)
    assert thread.is_alive() != is_cut
    server.close()
    thread.join(30)
    assert not thread.is_alive()


def test_ranks_that_are_not_called_wait(monkeypatch):
    """The control: as long as nobody calls them, they wait for the rank, and say so when it does not come."""
    member = Called()
    groups, began = connecting(monkeypatch, member, 1), time.monotonic()
    monkeypatch.setattr(member, "at", lambda meeting: None, raising=False)
    with pytest.raises(PeerLost, match="did not connect"):
        groups._connect("e1", 0, 2, 1)
    assert time.monotonic() - began > 0.9


def _same(found):
    """Those that are left, some of which have joined, have the bits of a run in which nobody died."""
    expected = undisturbed()
    assert (found["errors"], found["ledger"]) == ([], expected["ledger"])
    assert {told["fingerprint"] for told in found["told"].values()} == {expected["told"]["0"]["fingerprint"]}


class Watched(Called):
    """A member that is called when the test says so, and what its exchange waits are told then."""

    def at(self, meeting):
        raise WorldChanged(meeting)


def test_a_thread_that_waits_for_a_piece_is_let_go():
    """It looks up at nothing while it waits; the control: without the interrupt it stays, though the rank is called."""
    store, member, seen = HashStore(), Watched(), []
    with ThreadPoolExecutor(2) as executor:
        made = [executor.submit(ProcessGroupGloo, store, rank, 2, MINUTE) for rank in range(2)]
        first, second = (LiveGroupTransport(group.result()) for group in made)
    first.live = member

    def wait():
        try:
            with first._waits.within("a piece"):
                first._waits.wait(first._group.recv([torch.empty(1)], 1, 7))
        except LetGo as error:
            seen.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not first._waits._inside:
        time.sleep(0.002)
    member.is_called = True
    thread.join(0.5)
    assert thread.is_alive()
    first.interrupt()
    thread.join(60)
    assert not thread.is_alive()
    with pytest.raises(WorldChanged):
        seen[0].answer()
    wait()  # nobody enters any more, nor where the world has been left
    member.is_called = False
    first.close()
    wait()
    assert [type(error) for error in seen] == [LetGo] * 3
    second.close()
