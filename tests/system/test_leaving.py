"""Programs that end without destroying their process group, or while somebody still holds it."""

import ctypes
import threading
import time
from types import SimpleNamespace

import pytest

from unisono.system import leaving
from unisono.system.leaving import await_gloo

BODY = """
    import atexit, os, sys
    import torch, torch.distributed as dist
    from unisono.system import leaving

    if os.environ["RANK"] in {stays!r}:
        atexit.unregister(leaving._leave_groups)
    dist.init_process_group("gloo")
    total = torch.ones(1000)
    for _ in range(20):
        dist.all_reduce(total)
"""


def test_gloo_groups_are_destroyed_at_exit(place):
    """A script that forgets its group leaves none; one rank, the control, is let keep it.

    Torch may abort the control for that, and the other one be ended for its failure: it leaves last, and at once.
    """
    watch = """
        import pathlib, time
        # Registered before what the worker registers is run: handlers run last first.
        rank = os.environ["RANK"]
        def show():
            sys.stdout.write(f"kept {dist.is_initialized()}\\n")
            sys.stdout.flush()
            if rank == "0":
                pathlib.Path("shown").touch()
                return
            until = time.monotonic() + 90
            while not pathlib.Path("shown").exists() and time.monotonic() < until:
                time.sleep(0.01)
            os._exit(0)
        atexit.register(show)
        if rank == "0":
            atexit.unregister(leaving._leave_groups)
            atexit.register(leaving._leave_groups)
    """
    result = place.run(BODY.format(stays="1") + watch.replace("\n    ", "\n"), "-n2")
    assert sorted(result.stdout.splitlines()) == ["[rank 0] kept False", "[rank 1] kept True"]


@pytest.mark.slow
def test_no_abort_when_ranks_leave_others_at_work(place):
    """What ends most such programs by SIGABRT under torch alone, for the rank that leaves, ends well."""
    leave = """
    if dist.get_rank() == 3:
        sys.exit()
    try:
        while True:
            dist.all_reduce(total)
    except RuntimeError:
        print("lost")
    """
    for _ in range(2):
        result = place.run(BODY.format(stays="") + leave, "-n4")
        assert (result.returncode, result.stdout.count("lost")) == (0, 3), result.stderr


def work_under(name, work):
    """Start a thread of that name, and return it when it is at work."""
    is_ready = threading.Event()

    def run():
        ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME
        is_ready.set()
        work()

    thread = threading.Thread(target=run)
    thread.start()
    is_ready.wait()
    return thread


def test_threads_of_gloo_are_awaited():
    """A thread of gloo that works is waited for until it sleeps."""
    is_done, may_end = threading.Event(), threading.Event()

    def work():
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        is_done.set()
        may_end.wait()

    thread = work_under("pt_gloo_runloop", work)
    await_gloo()
    seen = is_done.is_set()
    may_end.set()
    thread.join()
    assert seen


@pytest.mark.parametrize(("name", "is_awaited"), [("pt_gloo_runloop", True), ("pt_other", False)])
def test_waiting_for_gloo_ends(name, is_awaited, monkeypatch):
    """A thread that never sleeps is not waited for longer than the limit; one that is not gloo's not at all."""
    monkeypatch.setattr(leaving, "LONGEST_S", 2.0)
    may_end = threading.Event()

    def work():
        while not may_end.is_set():
            pass

    thread = work_under(name, work)
    began = time.monotonic()
    await_gloo()
    took = time.monotonic() - began
    may_end.set()
    thread.join()
    assert (took >= 2.0) == is_awaited


@pytest.mark.slow
def test_no_abort_while_the_group_is_held(place):
    """A program that holds its group, as DDP does, ends well; under torch alone one process in eight was aborted."""
    body = """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        held, tensors = dist.group.WORLD, [torch.zeros(1) for _ in range(200)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        works[-1].wait()
        del works
        dist.destroy_process_group()
    """
    for _ in range(4):
        result = place.run(body, "-n2")
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("backend", "how"), [("gloo", ["destroy"]), ("cpu:gloo,cuda:nccl", ["abort"]), ("nccl", []), ("cuda:nccl", [])]
)
def test_a_group_of_gloo_and_nccl_is_left_too(backend, how):
    """Its name is not gloo, yet its gloo half must not outlive the interpreter; NCCL's waits for nobody."""
    done = []
    group = SimpleNamespace(
        get_backend=lambda: backend, destroy_process_group=lambda: done.append("destroy"),
        distributed_c10d=SimpleNamespace(_abort_process_group=lambda: done.append("abort")),
    )  # fmt: skip
    leaving.leave_group(group)
    assert done == how


def test_torch_can_abort_a_group():
    """The function that is called there is torch's."""
    from torch.distributed import distributed_c10d

    assert callable(distributed_c10d._abort_process_group)
