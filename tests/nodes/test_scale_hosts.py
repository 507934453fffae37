"""Somebody wants more or fewer workers of several launchers on loopback, on any host: the bits stay the same."""

import contextlib
import os
import signal
import threading
import time

import pytest

from hosts import differs, result_of
from unisono.launchers.control import ask

LIVE = ("--live", "auto", "--silence", "5", "--heartbeat", "60")  # a loaded machine is not silence


def starts(hosts, *arguments, workers, options=LIVE, out=None):
    """Start as many hosts as there are numbers of workers."""
    given = {"nodes": str(len(workers)), "options": options, "out": out}
    return [
        hosts.start("abc"[rank], *arguments, rank=rank, workers=count, **given) for rank, count in enumerate(workers)
    ]


def gates(rank, *steps):
    """Return the job's arguments by which a rank waits before each of these steps."""
    return [f"gate!@{step}:{rank}" for step in steps]


class Wish:
    """Somebody asks a launcher, and waits."""

    def __init__(self, hosts, path, workers):
        self.hosts, self.answers = hosts, []
        self.thread = threading.Thread(target=lambda: self.answers.append(ask(path, workers)), daemon=True)
        self.thread.start()

    def answer(self, steps):
        """Return the answer, when one step after the other has begun until it has come."""
        for step in steps:
            self.thread.join(1)
            self.hosts.open(step)
            self.thread.join(200 if step == steps[-1] else 15)
            if not self.thread.is_alive():
                break
        assert self.answers, self.hosts.words()
        return self.answers[0]


def awaited(path, seconds=200):
    """Wait for a socket."""
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.02)


@pytest.mark.slow
def test_two_hosts_shrink_and_grow(hosts, reference):
    """Four workers, two, and four, asked on either host, and one is killed in between."""
    first, second = starts(hosts, *gates(0, *range(5, 24)), workers=(2, 2))
    alone = hosts.out / "control.sock", hosts.out / "control-1.sock"
    for path in alone:
        awaited(path)
    first.wait_for_step(5)
    second.wait_for_step(5)
    refused = ask(hosts.out, 9)["refused"]
    assert "expected 1 to " in refused
    with hidden(alone[0]):
        shrunk = Wish(hosts, hosts.out, 2).answer(range(5, 10))
    assert (shrunk["workers"], shrunk["before"], shrunk["left"]) == (2, 4, [2, 3])
    os.kill(first.readings()[1].pid, signal.SIGKILL)
    first.wait_for_words("1 worker goes on without it")
    grown = Wish(hosts, hosts.out, 4).answer(range(5, 24))
    assert grown.get("workers") == 4, (grown, hosts.words())
    for step in range(5, 24):
        hosts.open(step)
    assert hosts.finish() == [0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""
    result = result_of(hosts.out)
    assert [result[name] for name in ("released", "deaths", "joins", "resumed_from_step")] == [2, 1, 3, 0]
    assert not any(path.exists() for path in alone)
    assert "attempt 1" not in hosts.words()


@pytest.mark.slow
def test_the_deciding_host_is_lost_meanwhile(hosts, reference):
    """Asked on the second host of three, when the first is dead and nobody knows: the successor has four workers."""
    first, second, third = starts(hosts, *gates(1, 9, *range(10, 24)), workers=(1, 1, 2))
    first.wait_for_step(9)
    second.wait_for_step(9)
    first.kill_everything()
    wish = Wish(hosts, hosts.out, 4)
    second.wait_for_words("host 1 decides from now on.")
    answer = wish.answer(range(9, 24))
    assert (answer["workers"], answer["before"] <= 4, answer["joined"]) == (4, True, [5]), answer
    for step in range(9, 24):
        hosts.open(step)
    assert hosts.finish(second, third) == [0, 0], hosts.words()
    assert differs(hosts.out, reference) == ""
    assert (result_of(hosts.out)["joins"], result_of(hosts.out)["resumed_from_step"]) == (1, 0)


@pytest.mark.slow
def test_hosts_with_directories_of_their_own_cannot_grow(hosts):
    """The answer says why; asked in the other host's own directory."""
    first, second = starts(hosts, *gates(0, *range(5, 24)), workers=(2, 1), out="own")
    awaited(second.folder / "own" / "control-1.sock")
    first.wait_for_step(5)
    second.wait_for_step(5)
    answer = Wish(hosts, second.folder / "own", 4).answer(range(5, 24))
    assert "each host has a run directory of its own" in answer["failed"], answer
    for step in range(5, 24):
        hosts.open(step)
    assert hosts.finish() == [0, 0], hosts.words()


def test_bounds_are_for_all_hosts(hosts):
    """All hosts' workers count: outside the bounds all are refused with code 2, before any worker starts."""
    starts(hosts, workers=(2, 2), options=(*LIVE, "--elastic", "1:3"))
    assert hosts.finish() == [2, 2], hosts.words()
    assert all("expected 1 to 3 workers (elastic=1:3), got 4" in host.err for host in hosts.started)


@contextlib.contextmanager
def hidden(path):
    """Let only the other launchers of one machine be asked, as on a host of theirs."""
    other = path.with_name("elsewhere")
    path.rename(other)
    try:
        yield
    finally:
        other.rename(path)
