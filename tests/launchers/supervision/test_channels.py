"""What the launcher and its workers say to each other."""

import queue

from unisono.launchers.supervision.channels import Channels, Told


def test_messages_are_lines_both_ways():
    """What one end sends the other one hears; a worker that is gone is no error."""
    heard = queue.SimpleQueue()
    channels = Channels(heard.put)
    theirs = channels.open(5)
    channels.send(5, {"halt": 1, "members": [5]})
    assert theirs.recv(100) == b'{"halt": 1, "members": [5]}\n'
    theirs.sendall(b'{"up": 1}\n')
    assert heard.get(timeout=10) == Told(5, {"up": 1})
    theirs.close()
    channels.send(5, {"leave": "all"})
    channels.close()


def test_all_is_heard_that_was_said_before_an_end():
    """A worker says that it has finished and ends at once: no order of threads may turn that round."""
    for rank in range(50):
        heard = queue.SimpleQueue()
        channels = Channels(heard.put)
        theirs = channels.open(rank)
        theirs.sendall(b'{"up": 1}\n' * 200 + b'{"finished": 9}\n')  # and a child of it may keep the socket
        channels.hear_out(rank)
        assert [heard.get_nowait() for _ in range(201)][-1] == Told(rank, {"finished": 9})
        channels.close()
        theirs.close()
