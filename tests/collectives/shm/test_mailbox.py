"""Messages between two ranks: two ends in one process, on two threads."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from unisono.collectives.shm.mailbox import NUM_PIECES, Mailbox
from unisono.errors import PeerLost, RankDivergence

PIECE = 64


@pytest.fixture
def ends():
    """Both ends of a mailbox with pieces of 64 bytes; waits end after 0.3 s."""
    first, address = Mailbox.create(2, PIECE, 0.3)
    second = Mailbox.attach(address, 1, 2, PIECE, 0.3)
    for end in (first, second):
        end.watch([os.getpid()] * 2)
    yield first, second
    first.close()
    second.close()


def message(length, seed=0):
    return torch.randint(0, 256, (length,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def receive(end, length, tag=0, what="bytes"):
    out = torch.zeros(length, dtype=torch.uint8)
    end.receive(out, 1 - end.rank, tag, what)
    return out


@pytest.mark.parametrize("length", [0, 1, PIECE, PIECE + 1, NUM_PIECES * PIECE, 100 * PIECE + 7])
def test_a_message_arrives(ends, length):
    """Any length passes: what does not fit waits until the other end makes room."""
    first, second = ends
    thread = threading.Thread(target=first.send, args=(message(length), 1, 0, "bytes"))
    thread.start()
    assert torch.equal(receive(second, length), message(length))
    thread.join()


def test_both_ways_at_once(ends):
    """The two directions of a pair do not disturb each other."""
    first, second = ends
    length = 50 * PIECE
    got = {}
    threads = [
        threading.Thread(target=first.send, args=(message(length, 1), 1, 0, "bytes")),
        threading.Thread(target=second.send, args=(message(length, 2), 0, 0, "bytes")),
        threading.Thread(target=lambda: got.update(first=receive(first, length))),
        threading.Thread(target=lambda: got.update(second=receive(second, length))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(got["first"], message(length, 2))
    assert torch.equal(got["second"], message(length, 1))


def test_order_and_tags(ends):
    """Messages of one tag arrive in order; those of another tag wait until they are asked for."""
    first, second = ends
    for number, tag in enumerate([1, 2, 1]):
        first.send(message(5, number), 1, tag, "bytes")
    assert torch.equal(receive(second, 5, tag=2), message(5, 1))
    assert torch.equal(receive(second, 5, tag=1), message(5, 0))
    assert torch.equal(receive(second, 5, tag=1), message(5, 2))


@pytest.mark.parametrize("is_aside", [False, True])
def test_another_shape(ends, is_aside):
    """A message of another shape or dtype is an error that says both, and the next one arrives."""
    first, second = ends
    first.send(message(8), 1, 3, "(2,) float32")
    first.send(message(8, 1), 1, 4, "(8,) uint8")
    if is_aside:
        receive(second, 8, 4, "(8,) uint8")
    with pytest.raises(RankDivergence, match=r"recv of \(1,\) float64 from rank 0, tag 3: .* holds \(2,\) float32"):
        receive(second, 8, 3, "(1,) float64")
    if not is_aside:
        assert torch.equal(receive(second, 8, 4, "(8,) uint8"), message(8, 1))


def test_room(ends):
    """A sender can see whether it would have to wait, and so can a receiver."""
    first, second = ends
    assert first.can_send(1, NUM_PIECES * PIECE)
    assert not first.can_send(1, NUM_PIECES * PIECE + 1)
    assert not second.can_receive(0, 0)
    first.send(message(PIECE + 1), 1, 0, "bytes")
    assert second.can_receive(0, PIECE + 1)
    assert not second.can_receive(0, 2 * PIECE + 1)
    assert not first.can_send(1, (NUM_PIECES - 1) * PIECE)


def test_nobody_answers(ends):
    """Who waits too long is told for whom, in both directions."""
    first, second = ends
    with pytest.raises(
        PeerLost, match=r"rank 0 \(process \d+\) has not come within 0.3 s \(waiting in recv of bytes from rank 0"
    ):
        receive(second, 1)
    with pytest.raises(
        PeerLost, match=r"rank 1 \(process \d+\) has not come within 0.3 s \(waiting in send of bytes to rank 1"
    ):
        first.send(message(NUM_PIECES * PIECE + 1), 1, 0, "bytes")


def test_a_dead_peer():
    """The death of the other process is noticed long before the timeout; what it had sent can still be received."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        first, address = Mailbox.create(2, PIECE, 60)
        second = Mailbox.attach(address, 1, 2, PIECE, 60)
        first.watch([other.pid, os.getpid()])
        second.watch([other.pid, os.getpid()])
        first.send(message(3), 1, 0, "bytes")
        other.kill()
        other.wait()
        assert torch.equal(receive(second, 3), message(3))
        start = time.monotonic()
        with pytest.raises(PeerLost, match=rf"rank 0 \(process {other.pid}\) has died"):
            receive(second, 3)
        assert time.monotonic() - start < 1
        first.close()
        second.close()
