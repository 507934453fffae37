"""Where in a meeting through gloo a rank of the live tests dies, and a meeting whose data reach some ranks only.

Patches this process's `LiveGroupTransport`; `live_programs.train` calls it.
"""

import os
import signal
import time
from pathlib import Path

from unisono.collectives.process_groups.live_groups import LiveGroupTransport


def watch(kills):
    """Let meetings through gloo be places: ``inside`` is where data have come, ``told`` where that has been said."""
    meet, begin = LiveGroupTransport._meet, LiveGroupTransport.begin_meeting

    def met(transport, *args):
        kills.meeting += 1
        kills._at("before")
        meet(transport, *args)
        kills._at("after")

    def begun(transport):
        kills._at("inside")
        work = begin(transport)
        kills._at("told")
        return work

    LiveGroupTransport._meet, LiveGroupTransport.begin_meeting = met, begun


def die_between_two_peers(kills, member, step, meeting, *, meets):
    """Let member 2 of three die when its block of an all_gather has reached rank 1, and nothing of it rank 0.

    Args:
        kills: Knows step and meeting.
        member: This one's number.
        step: At which it dies.
        meeting: Its all_gather at which it dies.
        meets: Whether ranks meet behind each collective, as they should.
    """
    came = Path(os.environ["UNISONO_RENDEZVOUS"] + "-came")
    if not meets:
        LiveGroupTransport.begin_meeting = lambda transport: _Done()

    def gather(transport, send, recv):
        is_there, size, own = (kills.step, kills.meeting + 1) == (step, meeting), transport.world_size, transport.rank
        nothing, count = send.new_empty(0), len(send)

        def start():
            begin = transport._group.alltoall_base
            first = begin(recv if own == 1 else nothing, send, *_splits(size, own, count, {1}))  # all to rank 1
            if is_there and member == 2:
                _wait_for(came)
                os.kill(os.getpid(), signal.SIGKILL)
            others, sent = {*range(size)} - {1}, send.repeat(size - 1)
            then = begin(nothing if own == 1 else recv, sent, *_splits(size, own, count, others))
            return _All([first] if own == 1 else [first, then], came if is_there and member == 1 else None)

        transport._meet("all_gather", start, send, recv)

    LiveGroupTransport.all_gather = gather


class _Done:
    """Work that waits for nobody."""

    def is_completed(self):
        return True

    def wait(self):
        """It is over."""


class _All(_Done):
    """Several works as one."""

    def __init__(self, works, tells):
        self._works, self._tells = works, tells

    def is_completed(self):
        is_over = all(work.is_completed() for work in self._works)
        if is_over and self._tells is not None:
            self._tells.touch()
        return is_over

    def wait(self):
        for work in self._works:
            work.wait()


def _splits(size, own, count, receivers):
    """Return how much a rank receives from each, and sends to each, where each of the receivers gets all."""
    return [count * (own in receivers)] * size, [count * (rank in receivers) for rank in range(size)]


def _wait_for(path):
    until = time.monotonic() + 300
    while not path.exists():
        if time.monotonic() > until:
            raise AssertionError("rank 1 has not got the block")
        time.sleep(0.002)
