"""Where in a step's exchange through gloo a rank of the live tests dies, and a report that reaches some ranks only.

Patches this process's exchanges; `live_programs.train` calls it.
"""

import functools
import os
import signal
import time
from pathlib import Path

from unisono.collectives.process_groups import live_waits
from unisono.collectives.process_groups.exchange import PieceExchange
from unisono.collectives.process_groups.live_groups import LiveGroupTransport


def watch(kills):
    """Let the parts of an exchange be places: what the ranks agree by, each bucket, and the seal.

    ``inside`` is where a message of a bucket has left, or data have come; ``told`` where the rank waits in that part.
    """

    def surround(owner, name):
        function = getattr(owner, name)

        def surrounded(*args, **kwargs):
            kills.meeting += 1
            kills._at("before")
            found = function(*args, **kwargs)
            kills._at("after")
            return found

        setattr(owner, name, surrounded)

    def precede(owner, name, when):
        function = getattr(owner, name)

        def preceded(*args, **kwargs):
            kills._at(when)
            return function(*args, **kwargs)

        setattr(owner, name, preceded)

    send = PieceExchange._send

    def sent(*args):
        send(*args)
        kills._at("inside")

    PieceExchange._send = sent
    for owner, name in ((live_waits._Unsealed, "all_gather"), (live_waits.LiveWaits, "_meet")):
        precede(owner, name, "inside")
    precede(live_waits.LiveWaits, "wait", "told")
    for owner, name in ((live_waits.LiveWaits, "agree"), (PieceExchange, "give"), (live_waits.LiveWaits, "seal")):
        surround(owner, name)
    surround(LiveGroupTransport, "_meet")


def die_between_two_peers(kills, member, step, *, meets):
    """Let member 2 of three die when its report of a step has reached rank 1, and nothing of it rank 0.

    Args:
        kills: Knows the step.
        member: This one's number.
        step: At which it dies.
        meets: Whether ranks seal an exchange, as they should.
    """
    came = Path(os.environ["UNISONO_RENDEZVOUS"] + "-came")
    seal, tell = LiveGroupTransport.seal, PieceExchange.tell

    def sealed(transport, start):
        if member == 1 and kills.step == step:
            came.touch()
        if meets:
            return seal(transport, start)
        transport.num_meetings += 1
        return lambda: None

    def told(exchange, message):
        if member != 2 or kills.step != step:
            return tell(exchange, message)
        group, find = exchange._find_group(), exchange._find_group
        exchange._find_group = lambda: _ToOne(group, 1)
        sending = tell(exchange, message)  # kept: gloo sends nothing more to a rank whose message it has lost
        exchange._find_group = find
        return functools.partial(_die_when, came, sending)

    LiveGroupTransport.seal, PieceExchange.tell = sealed, told


class _ToOne:
    """A group through which only one rank gets anything."""

    def __init__(self, group, rank):
        self.recv, self._group, self._rank = group.recv, group, rank

    def send(self, tensors, rank, tag):
        """Send to that rank, and to no other."""
        return self._group.send(tensors, rank, tag) if rank == self._rank else None


def _die_when(path, sending):
    """Die with what this one is sending."""
    until = time.monotonic() + 300
    while not path.exists():
        if time.monotonic() > until:
            raise AssertionError("rank 1 has not got the report")
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGKILL)
