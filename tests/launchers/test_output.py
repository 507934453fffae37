"""The workers' output."""

import os
import queue
from pathlib import Path

import pytest

from unisono.launchers.output import LineCleaner, OutputPump


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"a\nb\n"], b">a\n>b\n"),
        ([b"a", b"b\n"], b">ab\n"),
        ([b"one\r\ntwo\r", b"\n"], b">one\n>two\n"),
        ([b"10%\r", b"50%\r", b"100%\n"], b">100%\n"),
        ([b"\r10%", b"\r50%", b"\r100%"], b">100%\n"),
        ([b"10%\r90%\r"], b">90%\n"),
        ([b"\x1b[31mred\x1b[0m\x07\tx\x00\n"], b">red\tx\n"),
        ([b"\x1b]0;title\x07text\n"], b">text\n"),
        (["gr\u00fc\u00df\u009b31m \u00e9\n".encode()], ">gr\u00fc\u00df31m \u00e9\n".encode()),
        ([b""], b""),
    ],
)
def test_cleaner(chunks, expected):
    """Lines come whole and clean: the last state of a progress bar, no control characters but tab."""
    cleaner = LineCleaner(b">")
    assert b"".join(map(cleaner.feed, chunks)) + cleaner.flush() == expected


def test_cleaner_is_bounded():
    """Neither an endless bar nor an endless line makes the cleaner grow."""
    bar, line = LineCleaner(b""), LineCleaner(b"")
    for _ in range(1000):
        bar.feed(b"\r" + b"#" * 100)
        line.feed(b"x" * 1000)
    assert len(bar._pending) <= 101
    assert len(line._pending) <= 65536
    assert bar.flush() == b"#" * 100 + b"\n"


def pump_into(target_fd):
    events = queue.SimpleQueue()
    pump = OutputPump(on_broken=lambda: events.put("broken"), on_done=lambda: events.put("done"))
    return pump, pump.open("[0] ", target_fd), events


def test_lines_that_come_together_stand_in_the_order_of_ranks(tmp_path, monkeypatch):
    """Whichever came first; what comes after them comes after them."""
    monkeypatch.setattr("unisono.launchers.output._TOGETHER_S", 0.5)  # a busy machine
    shown = (tmp_path / "out").open("ab+", buffering=0)
    events = queue.SimpleQueue()
    pump = OutputPump(on_broken=lambda: events.put("broken"), on_done=lambda: events.put("done"))
    fds = [pump.open(f"[rank {rank}] ", shown.fileno()) for rank in range(3)]
    pump.start()
    for rank in (2, 0, 1):
        os.write(fds[rank], b"hello\n")
    while shown.seek(0) == 0 and shown.read().count(b"\n") < 3:
        assert events.empty()
    os.write(fds[2], b"bye\n")
    for fd in fds:
        os.close(fd)
    pump.finish()
    assert events.get(timeout=60) == "done"
    shown.seek(0)
    assert shown.read().decode().splitlines() == [*(f"[rank {rank}] hello" for rank in range(3)), "[rank 2] bye"]
    shown.close()


def test_pump_finishes_although_a_pipe_stays_open(tmp_path):
    """A descendant that keeps the pipe open cannot keep the launcher from ending; nothing written is lost."""
    with (tmp_path / "out").open("wb") as out:
        pump, fd, events = pump_into(out.fileno())
        pump.start()
        os.write(fd, b"whole\npart")
        pump.finish()
        assert events.get(timeout=10) == "done"
        os.close(fd)
    assert (tmp_path / "out").read_bytes() == b"[0] whole\n[0] part\n"


def test_pump_survives_a_full_disk():
    """A target that cannot be written does not block the worker and is no reason to stop."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        pump, fd, events = pump_into(full.fileno())
        pump.start()
        for _ in range(50):
            os.write(fd, b"x" * 9999 + b"\n")
        os.close(fd)
        pump.finish()
        assert events.get(timeout=10) == "done"


def test_pump_reports_a_missing_reader():
    """A reader that went away is reported once, and the workers' pipes are still emptied."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    pump, fd, events = pump_into(write_end)
    pump.start()
    for _ in range(50):
        os.write(fd, b"x" * 9999 + b"\n")
    os.close(fd)
    pump.finish()
    assert [events.get(timeout=10), events.get(timeout=10)] == ["broken", "done"]
    os.close(write_end)


def test_pump_that_never_started():
    """A launch that failed early closes its pipes and ends."""
    pump, fd, events = pump_into(None)
    pump.finish()
    assert events.get(timeout=10) == "done"
    os.close(fd)
