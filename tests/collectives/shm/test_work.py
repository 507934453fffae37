"""Handles of operations, and the lanes in which they follow one another."""

import threading
import time
from datetime import timedelta

import pytest
import torch

from unisono.collectives.shm.work import Lane, ShmWork, is_in_backward
from unisono.errors import ConfigError, PeerLost


def fail(error):
    raise error


def test_jobs_run_in_order():
    """Background jobs and one that is waited for run one after the other, in the order given."""
    lane, order, gate = Lane("test"), [], threading.Event()
    first = lane.do(gate.wait, ShmWork("first", []), in_background=True)
    for number in range(5):
        lane.do(lambda number=number: order.append(number), ShmWork("job", []), in_background=True)
    assert not first.is_completed()
    assert not lane.is_idle
    gate.set()
    lane.do(lambda: order.append("last"), ShmWork("last", []), in_background=False)
    assert order == [0, 1, 2, 3, 4, "last"]
    lane.close()


def test_a_job_that_is_waited_for_needs_no_thread():
    """With nothing under way it runs in the calling thread."""
    lane, seen = Lane("test"), []
    lane.do(lambda: seen.append(threading.current_thread()), ShmWork("job", []), in_background=False)
    assert seen == [threading.current_thread()]
    assert lane.is_idle


def test_whoever_waits_for_the_next_job_runs_it(monkeypatch):
    """A background job that no thread has begun runs in the thread that waits for it, but never before its turn."""
    monkeypatch.setattr(Lane, "_start_thread", lambda _: None)
    lane, seen = Lane("test"), []
    first, second = (
        lane.do(
            lambda name=name: seen.append((name, threading.current_thread())), ShmWork(name, []), in_background=True
        )
        for name in ("first", "second")
    )
    with pytest.raises(PeerLost, match="has not ended"):
        second.wait(timedelta(seconds=0.01))
    second.run_now()
    assert seen == []
    first.wait()
    second.wait()
    assert seen == [("first", threading.current_thread()), ("second", threading.current_thread())]
    assert first.run_now is None


def test_errors_of_all_ranks_leave_the_lane_open():
    """A refusal that all ranks share is raised where the job is waited for, and the next job runs."""
    lane, seen = Lane("test"), []
    with pytest.raises(ConfigError, match="no"):
        lane.do(lambda: fail(ConfigError("no")), ShmWork("job", []), in_background=False)
    work = lane.do(lambda: fail(ConfigError("nor")), ShmWork("job", []), in_background=True)
    with pytest.raises(ConfigError, match="nor"):
        work.wait()
    assert isinstance(work.exception(), ConfigError)
    lane.do(lambda: seen.append(1), ShmWork("job", []), in_background=False)
    assert seen == [1]
    lane.close()


@pytest.mark.parametrize("error", [PeerLost("gone"), KeyboardInterrupt(), ValueError("x")])
def test_nothing_runs_after_a_loss(error):
    """After a lost peer, or a job cut short, later jobs fail with `PeerLost` and do not run."""
    lane, seen = Lane("test"), []
    with pytest.raises(type(error)):
        lane.do(lambda: fail(error), ShmWork("reduce", []), in_background=False)
    for in_background in (False, True):
        with pytest.raises(PeerLost, match=r"gone|reduce was cut short by"):
            lane.do(lambda: seen.append(1), ShmWork("job", []), in_background=in_background).wait()
    assert seen == []
    lane.close()


@pytest.mark.parametrize("is_late", [False, True])
def test_future(is_late):
    """The future holds the tensors, or an error with the cause's text, whenever it is asked for."""
    good, bad = ShmWork("good", [torch.ones(2)]), ShmWork("bad", [])
    futures = [] if is_late else [good.get_future(), bad.get_future()]
    good.finish()
    bad.finish(PeerLost("rank 3 has died"))
    futures = futures or [good.get_future(), bad.get_future()]
    assert good.get_future() is futures[0]
    assert futures[0].wait()[0].tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="PeerLost: rank 3 has died"):
        futures[1].wait()
    assert good.result()[0].tolist() == [1.0, 1.0]
    assert (good.is_success(), bad.is_success()) == (True, False)


def test_a_wait_that_takes_too_long():
    """A timeout of the wait is a `PeerLost` that names the operation."""
    start = time.monotonic()
    with pytest.raises(PeerLost, match=r"all_reduce has not ended within 0.05 s"):
        ShmWork("all_reduce", []).wait(timedelta(seconds=0.05))
    assert time.monotonic() - start < 5


def test_backward_is_noticed():
    """The hooks of a backward pass know where they are; the code around it does too."""
    seen = []
    value = torch.ones(1, requires_grad=True)
    value.register_hook(lambda gradient: seen.append(is_in_backward()))
    assert not is_in_backward()
    (value * 2).sum().backward()
    assert seen == [True]
    assert not is_in_backward()
