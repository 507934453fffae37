"""What the launcher and its workers say to each other."""

import queue
import threading

from unisono.launchers.supervision.channels import Channels, Told, _Channel


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


def test_all_is_heard_that_others_had_said_before_an_end(monkeypatch):
    """Another worker has begun its steps, and one that has met it there dies: the thread that hears it may be late."""
    late, hear = threading.Event(), _Channel._hear
    monkeypatch.setattr(_Channel, "_hear", lambda channel: (channel._rank or late.wait(), hear(channel)))
    heard = queue.SimpleQueue()
    channels = Channels(heard.put)
    ends = [channels.open(rank) for rank in (0, 1)]
    for end in ends:
        end.sendall(b'{"open": true}\n')
    ends[1].close()
    channels.hear_out(1)
    assert {heard.get_nowait().rank for _ in ends} == {0, 1}
    ends[0].sendall(b'{"up"')  # half a line: its end is heard by another thread
    channels.hear_out(1)
    late.set()
    ends[0].sendall(b": 1}\n")
    assert heard.get(timeout=10) == Told(0, {"up": 1})
    channels.close()
    channels.hear_out(0)  # an end that is seen late
    assert heard.empty()
    ends[0].close()
