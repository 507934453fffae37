"""The page that a worker and its launcher share."""

import math
import os
import stat
import time

import pytest

from unisono.system.heartbeat import JOINED, QUIET, STOPPED, HeartbeatPage, HeartbeatThread, Reading


def test_what_is_told_is_read(tmp_path):
    """Every word of the worker arrives, also after it has let go of the page."""
    launcher = HeartbeatPage.create(tmp_path / "heartbeat-0")
    assert launcher.read() == Reading()
    worker = HeartbeatPage(tmp_path / "heartbeat-0")
    worker.join(os.getpid())
    worker.begin(7)
    worker.take_up(3, b"".join(number.to_bytes(8, "little") for number in (11, 12)))
    worker.note(b"compute")
    worker.beat()
    worker.saved(4)
    expected = Reading(
        beats=1, pid=os.getpid(), step=7, saved=4, ticks=1, state=JOINED, replica=3, phase="compute", samples=(11, 12)
    )
    assert launcher.read() == expected
    assert expected.is_joined
    worker.done(7)
    del worker
    assert (launcher.read().done, launcher.read().replica) == (7, -1)


def test_what_is_only_shown(tmp_path):
    """The last step and a loss, also one that four bytes cannot hold; samples do not run over them."""
    heartbeat = HeartbeatPage.create(tmp_path / "heartbeat-0")
    heartbeat.ends(69)
    heartbeat.done(7, 0.25)
    heartbeat.take_up(0, bytes(8 * 1000))
    heartbeat.was_alone()
    heartbeat.ask_stop()
    assert (heartbeat.read().last, heartbeat.read().loss, heartbeat.read().is_alone) == (69, 0.25, True)
    for loss, shown in ((1e300, math.inf), (-1e300, -math.inf), (math.inf, math.inf)):
        heartbeat.done(8, loss)
        assert heartbeat.read().loss == shown
    for unknown in (math.nan, None):
        heartbeat.done(8, 0.5)
        heartbeat.done(9, unknown)
        assert math.isnan(heartbeat.read().loss)
    heartbeat.ends(2**40)
    assert heartbeat.read().last == 2**32 - 1


def test_long_batches_are_cut(tmp_path):
    """A thousand samples do not run over the end of the page."""
    heartbeat = HeartbeatPage.create(tmp_path / "heartbeat-0")
    heartbeat.take_up(0, bytes(8 * 1000))
    assert len(heartbeat.read().samples) == 500


def test_the_launcher_asks(tmp_path):
    """One word goes the other way."""
    launcher, worker = HeartbeatPage.create(tmp_path / "b"), HeartbeatPage(tmp_path / "b")
    assert not worker.is_stop_asked
    launcher.ask_stop()
    assert worker.is_stop_asked


def test_leaving():
    """A worker whose run is over is judged no more; one that stopped on request is remembered as such."""
    heartbeat = HeartbeatPage(None)
    heartbeat.join(1)
    heartbeat.leave()
    assert heartbeat.read().state == QUIET
    heartbeat.set_state(STOPPED)
    heartbeat.leave()
    assert heartbeat.read().state == STOPPED


def test_the_file_is_private(tmp_path):
    """Only its owner may read it, and a link in its place is not followed."""
    HeartbeatPage.create(tmp_path / "heartbeat-0")
    assert stat.S_IMODE((tmp_path / "heartbeat-0").stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "heartbeat-0")
    with pytest.raises(OSError, match="symbolic"):
        HeartbeatPage(tmp_path / "link")


def test_a_pulse_beats_until_it_is_stopped():
    """Signs of life come by themselves."""
    heartbeat = HeartbeatPage(None)
    pulse = HeartbeatThread(heartbeat)
    deadline = time.monotonic() + 20
    while heartbeat.read().beats < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert heartbeat.read().beats >= 2
    pulse.stop()
