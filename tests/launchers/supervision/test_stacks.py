"""Stack dumps in plain words."""

import faulthandler
import sysconfig
import threading

from unisono.launchers.supervision.stacks import (
    _PACKAGE,
    DumpFilter,
    Frame,
    call_of,
    describe_hang,
    main_thread,
    waits_for_others,
    waits_in_vain,
)
from unisono.system.heartbeat import JOINED, LEFT_LOOP, QUIET, Reading

WAITING = [
    Frame(f"{_PACKAGE}/collectives/shared_memory.py", "200", "_wait"),
    Frame(f"{_PACKAGE}/collectives/shm.py", "52", "all_gather"),
    Frame(f"{_PACKAGE}/strategies/exact.py", "70", "compute_gradients"),
    Frame("/home/me/train.py", "31", "main"),
]
AWAY = [Frame(sysconfig.get_path("stdlib") + "/socket.py", "9", "recv"), Frame("/home/me/train.py", "12", "read_rows")]


def test_a_real_dump(tmp_path):
    """What faulthandler writes is read: the main thread, innermost call first."""
    done, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (ready.set(), done.wait()))
    thread.start()
    ready.wait()
    try:
        with (tmp_path / "dump").open("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            frames = main_thread(file.read())
    finally:
        done.set()
        thread.join()
    assert (frames[0].file, frames[0].function) == (__file__, "test_a_real_dump")
    assert frames[0].is_users
    assert not any(frame.file.startswith("<frozen importlib") for frame in frames)


def test_nothing_to_read():
    """An empty or foreign text has no frames."""
    assert main_thread("") == main_thread("Hello\n  File x\n") == []


def test_who_waits_in_what():
    """The outermost function of ours that moves bytes is named; torch's own collectives too."""
    assert waits_for_others(WAITING) == "all_gather"
    assert waits_for_others(AWAY) == ""
    torchs = [Frame("/x/site-packages/torch/distributed/distributed_c10d.py", "1", "all_reduce"), *AWAY]
    assert waits_for_others(torchs) == "torch.distributed.all_reduce"
    loading = [
        Frame("/x/site-packages/torch/utils/data/dataloader.py", "9", "_try_get_data"),
        Frame(f"{_PACKAGE}/data/loader.py", "182", "fetch_all"),
        Frame(f"{_PACKAGE}/collectives/tree.py", "80", "accumulate"),
    ]
    assert waits_for_others(loading) == ""


def test_the_report():
    """It says who waits, for whom, in which collective of which step, and where the missing rank is."""
    readings = {rank: Reading(step=17, phase=phase, state=JOINED) for rank, phase in enumerate(("reduce", "data"))}
    report = describe_hang(30, readings, {0: WAITING, 1: AWAY}, {})
    assert "nothing has moved for 30 s" in report
    assert "rank 0: waits for the other ranks in all_gather, step 17, doing reduce at /home/me/train.py:31" in report
    assert "rank 1: step 17, doing data, at /home/me/train.py:12 in read_rows" in report
    assert "The others wait for rank 1." in report
    assert "stack of rank 1" in report
    assert "stack of rank 0" not in report
    assert "If the others never call all_gather, this lasts until the timeout. Hint: every rank must call it" in report


def test_the_report_without_stacks():
    """Workers that show nothing are still listed."""
    report = describe_hang(30, {0: Reading(step=3)}, {0: []}, {})
    assert "rank 0: step 3; it has not shown its stack" in report


STEPPING_FRAMES = [
    *WAITING[:3],
    Frame(f"{_PACKAGE}/train/run.py", "9", "step"),
    Frame(f"{_PACKAGE}/options/keywords.py", "9", "answered"),
    WAITING[3],
]


def test_the_call_of_the_program():
    """It is named as the program writes it, whatever waits inside it."""
    assert call_of(STEPPING_FRAMES) == "run.step"
    over = [WAITING[1], Frame(f"{_PACKAGE}/train/launcher_link.py", "9", "over"), WAITING[3]]
    assert call_of(over) == "run.steps"
    assert call_of(AWAY) == ""


def test_different_calls_wait_in_vain():
    """All wait, and for different things: nobody can go on. The control: all in one call, or one that only computes."""
    apart = {0: WAITING, 1: STEPPING_FRAMES}
    assert waits_in_vain(apart)
    assert not waits_in_vain({0: STEPPING_FRAMES, 1: STEPPING_FRAMES})
    assert not waits_in_vain({0: WAITING, 1: AWAY})
    report = describe_hang(5, {rank: Reading(step=10 + rank, state=JOINED) for rank in apart}, apart, {})
    assert "rank 0: waits for the other ranks in all_gather, step 10 at /home/me/train.py:31" in report
    assert "rank 1: waits for the other ranks in run.step, step 11 at" in report
    assert "None of them can go on: they wait in different calls. Hint: every rank must call it: no `if run." in report


def test_where_ranks_are_that_do_not_step():
    """Out of the loop, out of the run, ended: each is said."""
    readings = {
        0: Reading(step=10, done=10, state=JOINED, phase=LEFT_LOOP),
        1: Reading(step=10, done=10, state=JOINED, phase=LEFT_LOOP),
        2: Reading(pid=7, done=9, state=QUIET),
    }
    report = describe_hang(30, readings, {0: WAITING, 1: AWAY, 2: []}, {3: Reading(pid=8, done=8)})
    assert "rank 0: waits for the other ranks in all_gather, has left its loop after step 10 at" in report
    assert "rank 1: has left its loop after step 10, at /home/me/train.py:12" in report
    assert "rank 2: has closed its run after step 9" in report
    assert "rank 3: has ended after step 8" in report


DUMP = f"""before
Fatal Python error: Segmentation fault

Thread 0x00007f540b8f06c0 (most recent call first):
  File "{sysconfig.get_path("stdlib")}/threading.py", line 331 in wait
  File "{_PACKAGE}/system/heartbeat.py", line 194 in _run

Thread 0x00007f540b8f06c1 (most recent call first):
  File "/home/me/loader.py", line 3 in fetch

Current thread 0x00007f542b846b80 (most recent call first):
  File "{sysconfig.get_path("stdlib")}/ctypes/__init__.py", line 519 in string_at
  File "/home/me/train.py", line 10 in loss
  File "{_PACKAGE}/train/run.py", line 329 in step
  File "/home/me/train.py", line 13 in <module>
  File "{_PACKAGE}/launchers/worker/child.py", line 202 in _execute
  File "<frozen runpy>", line 88 in _run_code

Extension modules: torch._C (total: 1)
  File "{_PACKAGE}/a line of the program's own"
"""


def shown(text):
    dump = DumpFilter()
    lines = [line for each in text.encode().splitlines() for line in dump.feed(each)]
    return b"\n".join([*lines, *dump.flush()]).decode().splitlines()


def test_the_dump_of_a_fault_shows_the_program():
    """Our frames below the program's, and our own threads, are left out; all other lines stay as they are."""
    lines = DUMP.splitlines()
    assert shown(DUMP) == [*lines[:3], *lines[7:13], lines[14], *lines[17:]]
    assert shown("\n".join(lines[:13])) == [*lines[:3], *lines[7:13]]  # it breaks off within a thread


def test_a_fault_in_our_own_code_keeps_its_frames():
    """Those that the program has called."""
    ours = DUMP.replace('/home/me/train.py", line 10 in loss', f'{_PACKAGE}/collectives/shm/board.py", line 9 in take')
    assert [line for line in shown(ours) if f"{_PACKAGE}/" in line and "line 9 in take" in line]
    assert not [line for line in shown(ours) if "_execute" in line]
