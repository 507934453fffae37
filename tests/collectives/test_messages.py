"""Messages between two ranks, and transports between some of them: order, tags, lost peers."""

import pytest
import torch

from forks import run_forked
from ranks import join
from unisono.collectives.loopback import LoopbackTransport, run_ranks
from unisono.collectives.pieces import padded_length
from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.sub_transport import SubTransport
from unisono.collectives.transport import Transport
from unisono.errors import ConfigError, PeerLost


def talk(transport):
    """Send messages with two tags round a ring, all before any is received; add up in two groups side by side."""
    joined = join(transport)
    messages, rank, size = joined.messages(), joined.rank, joined.world_size
    right, left = (rank + 1) % size, (rank - 1) % size
    for number in range(3):
        for tag in (1, 2):
            messages.send(torch.tensor([rank, number, tag]), right, tag)
    came = []
    for tag in (2, 1):  # another order than they were sent in
        for _ in range(3):
            message = torch.empty(3, dtype=torch.int64)
            messages.receive(message, left, tag)
            came.append(message.tolist())
    messages.flush()
    # The even and the odd ranks.
    group = [other for other in range(size) if other % 2 == rank % 2]
    part = SubTransport(messages, group, 9)
    flat = torch.full((padded_length(5, len(group)),), float(rank))
    out = torch.empty_like(flat)
    leaves = [range(place, place + 1) for place in range(len(group))]
    tree_all_reduce([((part.rank, part.rank + 1), flat)], leaves, len(group), out, part)
    told = part.all_gather_json({"rank": rank})
    joined.barrier()
    return {"came": came, "sum": out[:5].tolist(), "told": [one["rank"] for one in told], "left": left}


def check(reports):
    """Everything came, in order for each tag, and each group has its own sum."""
    size = len(reports)
    for rank, report in enumerate(reports):
        left = (rank - 1) % size
        assert report["came"] == [[left, number, tag] for tag in (2, 1) for number in range(3)]
        group = [other for other in range(size) if other % 2 == rank % 2]
        assert report["told"] == group
        assert report["sum"] == [float(sum(group))] * 5


def test_in_one_process():
    """Between threads, while some wait for messages and others for a collective."""
    check(run_ranks(talk, 4))


@pytest.mark.slow
def test_in_processes():
    """Through torch.distributed."""
    check(run_forked(talk, 4))


def test_a_message_that_never_comes():
    """The sender has left, or everyone waits for everyone: an error, not a hang."""

    def left(transport):
        if transport.rank == 1:
            transport.messages().receive(torch.empty(1), 0, 0)

    with pytest.raises(PeerLost, match="rank 0 left before it sent"):
        run_ranks(left, 2)

    def both_wait(transport):
        transport.messages().receive(torch.empty(1), 1 - transport.rank, 0)

    with pytest.raises(PeerLost, match="all ranks wait for each other"):
        run_ranks(both_wait, 2)


def test_a_message_is_a_copy_and_a_rank_alone_needs_no_group():
    """What is changed after flush does not change what was sent; without processes the reason is said."""

    def program(transport):
        messages = transport.messages()
        if transport.rank == 0:
            message = torch.ones(2)
            messages.send(message, 1, 0)
            messages.flush()
            message.zero_()
            return None
        arrived = torch.empty(2)
        messages.receive(arrived, 0, 0)
        return arrived.tolist()

    assert run_ranks(program, 2)[1] == [1.0, 1.0]
    assert LoopbackTransport().messages().world_size == 1

    class Bare(Transport):
        rank, world_size = 0, 2

        def all_to_all(self, *_):
            """Do nothing."""

        def all_gather(self, *_):
            """Do nothing."""

    with pytest.raises(ConfigError, match="need processes"):
        Bare().messages()
