"""Whom a meeting names when ranks do not come: here with one real rank, and processes that stand for the others."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from unisono.collectives.shm.board import SharedBoard
from unisono.errors import PeerLost


@contextlib.contextmanager
def boards(num_others, timeout_s):
    """The boards of all ranks in this process; the ranks above 0 are watched as processes that only wait."""
    others = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(num_others)]
    size, pids = num_others + 1, [os.getpid(), *(other.pid for other in others)]
    first, address = SharedBoard.create(size, 4096, timeout_s)
    found = [first, *(SharedBoard.attach(address, rank, size, 4096, timeout_s) for rank in range(1, size))]
    try:
        for board in found:
            board.watch(pids)
        yield found, others
    finally:
        for board in found:
            board.close()
        for other in others:
            other.kill()
            other.communicate()


def lost(board):
    """What a board says of the others in a meeting they do not come to."""
    with pytest.raises(PeerLost) as error:
        board.barrier(b"a barrier")
    return str(error.value)


def end(process):
    process.kill()
    process.wait()


def test_all_dead_ranks_are_named():
    """Where several ranks have died, all of them stand in the message, with their processes."""
    with boards(3, 60) as ([first, *_], [one, two, three]):
        end(one)
        end(three)
        assert f"ranks 1 (process {one.pid}) and 3 (process {three.pid}) have died (waiting in a barrier" in lost(first)
        assert two.poll() is None


def test_who_left_because_of_another_is_not_named():
    """A rank that has given up for a stopped one, and ended, is not taken for the first cause."""
    with boards(2, 0.2) as ([first, _, second], [stopped, left]):
        stopped.send_signal(signal.SIGSTOP)
        assert f"rank 1 (process {stopped.pid}), stopped by a signal or a debugger, has not come" in lost(second)
        end(left)
        assert f"[rank 0/3] rank 1 (process {stopped.pid}), stopped by a signal" in lost(first)
    with boards(2, 0.2) as ([first, _, second], [_, left]):  # the control: one that had not given up is
        end(left)
        assert f"rank 2 (process {left.pid}) has died" in lost(first)
        assert second.num_meetings == 0


def test_who_is_behind_is_named():
    """Of ranks that live and run, the one that has come to the fewest meetings is named."""
    with boards(2, 0.2) as ([first, second, _], [_, late]):
        lost(second)
        message = lost(first)
        assert f"rank 2 (process {late.pid}) has not come within 0.2 s (waiting in a barrier, meeting 1)" in message
