"""Nothing outlives a launch: not after Ctrl-C, not after SIGKILL of the launcher."""

import os
import signal
import sys
import time

import pytest

WAIT = "while True: time.sleep(0.05)\n"
GRANDCHILD = (
    "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
    "note(f'pid-grandchild-{RANK}', child.pid)\n"
)
PID = "note(f'pid-{RANK}')\n"


def test_sigkill_of_the_launcher(place, note):
    """When the launcher is killed, its workers and the processes they started are gone within 2 seconds."""
    launcher = place.start(note + GRANDCHILD + PID + WAIT, "-n2")
    pids = place.wait_files("pid-*[0-9]", 4)
    launcher.kill()
    launcher.wait()
    place.wait_gone(pids, 2.0)


@pytest.mark.slow
def test_sigkill_of_the_launcher_in_a_collective(place, note):
    """A worker blocked inside a gloo collective dies with its launcher, too."""
    body = (
        note
        + (
            "import torch, torch.distributed as dist\n"
            "dist.init_process_group('gloo')\n"
            "if RANK == 0: work = dist.all_reduce(torch.ones(1), async_op=True)\n" + PID
        )
        + "if RANK == 0: work.wait()\n"
        + WAIT
    )
    launcher = place.start(body, "-n2")
    pids = place.wait_files("pid-*[0-9]", 2)
    launcher.kill()
    launcher.wait()
    place.wait_gone(pids, 2.0)


def test_plain_children_would_survive(place, alive):
    """Control: without our measures a child in its own session outlives its killed parent."""
    parent = place.popen(
        sys.executable,
        "-c",
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'], "
        "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n",
    )
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    try:
        with pytest.raises(AssertionError, match="still alive"):
            place.wait_gone([pid], 1.0)
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_descendants_of_a_failed_worker(place, note):
    """After a failure no process is left, not even those that the dead worker had started."""
    body = (
        note
        + GRANDCHILD
        + PID
        + (
            "while len([n for n in os.listdir() if n.startswith('pid-') and not n.endswith('part')]) < 4:\n"
            "    time.sleep(0.02)\n"
            "if RANK == 1: os._exit(3)\n"
        )
    )
    result = place.run(body + WAIT, "-n2")
    assert result.returncode == 3
    pids = [int(path.read_text()) for path in place.folder.glob("pid-*[0-9]")]
    assert len(pids) == 4
    place.wait_gone(pids, 1.0)


def test_ctrl_c(place, note):
    """One Ctrl-C ends all workers at once, with code 130 and without a single traceback."""
    launcher = place.start(note + GRANDCHILD + PID + WAIT, "-n3")
    pids = place.wait_files("pid-*[0-9]", 6)
    start = time.monotonic()
    launcher.send_signal(signal.SIGINT)
    result = place.finish(launcher)
    assert result.returncode == 130
    assert time.monotonic() - start < 4
    assert (result.stdout, result.stderr) == ("", "")
    place.wait_gone(pids, 1.0)


def test_second_ctrl_c(place, note):
    """Against workers that take their time after the first Ctrl-C, the second one kills at once."""
    body = note + "signal.signal(signal.SIGINT, lambda *_: note(f'asked-{RANK}'))\n" + PID + WAIT
    launcher = place.start(body, "-n2")
    pids = place.wait_files("pid-*[0-9]", 2)
    launcher.send_signal(signal.SIGINT)
    place.wait_files("asked-*[0-9]", 2)
    start = time.monotonic()
    launcher.send_signal(signal.SIGINT)
    assert place.finish(launcher).returncode == 130
    assert time.monotonic() - start < 3  # the grace is 5
    place.wait_gone(pids, 1.0)


@pytest.mark.slow
def test_ctrl_c_against_deaf_workers(place, note):
    """Workers that ignore Ctrl-C are killed when the grace is over."""
    launcher = place.start(note + "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + PID + WAIT, "-n2")
    pids = place.wait_files("pid-*[0-9]", 2)
    start = time.monotonic()
    launcher.send_signal(signal.SIGINT)
    assert place.finish(launcher).returncode == 130
    assert 4.5 < time.monotonic() - start < 8
    place.wait_gone(pids, 1.0)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str)
def test_polite_signals(place, note, signum, code):
    """SIGTERM and SIGHUP reach the workers as SIGTERM; they may finish their work first."""
    body = note + (
        "def stop(*_):\n    print('saved', flush=True)\n    sys.exit(0)\nsignal.signal(signal.SIGTERM, stop)\n"
    )
    launcher = place.start(body + PID + WAIT, "-n2")
    pids = place.wait_files("pid-*[0-9]", 2)
    launcher.send_signal(signum)
    result = place.finish(launcher)
    assert result.returncode == code
    assert sorted(result.stdout.splitlines()) == ["[rank 0] saved", "[rank 1] saved"]
    place.wait_gone(pids, 1.0)


def test_under_nohup(place, note):
    """A launcher that was started with SIGHUP ignored (nohup) outlives its terminal, and so do its workers.

    The one before, without nohup, is the control: it ends with code 129.
    """
    body = note + PID + "while not os.path.exists('enough'): time.sleep(0.05)\n"
    body += "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)\n"
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from unisono.cli.run import run; run()"
    launcher = place.popen(sys.executable, "-c", code, "-n2", place.write(body))
    pids = place.wait_files("pid-*[0-9]", 2)
    for pid in (launcher.pid, *pids):
        os.kill(pid, signal.SIGHUP)
    (place.folder / "enough").touch()
    result = place.finish(launcher)
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(result.stdout.splitlines()) == [f"[rank {rank}] True" for rank in (0, 1)]
