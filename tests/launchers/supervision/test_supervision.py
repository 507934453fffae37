"""Restarts, the right culprit and the right code, with plain programs that train nothing."""

import os
import queue
import signal
import sys
import time
from pathlib import Path

import pytest

from unisono.errors import WorkerFailed
from unisono.launchers import forking, local
from unisono.launchers.scratch import scratch_directory
from unisono.launchers.spec import LaunchSpec, ScriptTarget
from unisono.launchers.supervision.live_recovery import LiveRecovery
from unisono.launchers.supervision.replacements import Replacements
from unisono.launchers.supervision.supervisor import Supervisor
from unisono.launchers.worker_group import WorkerGroup, next_event

ONCE = """
import os, sys, time
def once(name):
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
"""


def test_a_failed_worker_is_replaced(place):
    """All workers start again after one has died; what they are told about the world is the same."""
    body = ONCE + (
        "rank = os.environ['RANK']\n"
        "if not once('began-' + rank): print(os.environ['WORLD_SIZE'], os.environ['UNISONO_REPLICAS'])\n"
        "elif rank == '0': time.sleep(60)\n"
        "else:\n"
        "    while not os.path.exists('began-0'): time.sleep(0.01)\n"
        "    os._exit(3)\n"
    )
    result = place.run(body, "-n2", "--max-restarts", "1")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[rank 0] 2 2", "[rank 1] 2 2"]
    assert "rank 1 of 2 exited with code 3" in result.stderr
    assert (
        "Restart 1 with 2 workers from the last checkpoint, if there is one (1 of 1 restarts without progress)."
        in result.stderr
    )


@pytest.mark.slow
def test_a_failed_worker_that_does_not_end_is_ended_in_silence(place):
    """A thread that holds it is no stack on the terminal; and a message of several lines is a sentence in short."""
    body = ONCE + (
        "import threading\n"
        "from unisono.errors import CheckpointError\n"
        "if once('began'):\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "    raise CheckpointError('none of these can be trusted:\\n  this one')\n"
    )
    began = time.monotonic()
    result = place.run(body, "-n1", "--max-restarts", "1")
    assert (result.returncode, time.monotonic() - began < 55) == (0, True), result.stderr
    assert "CheckpointError: none of these can be trusted. Restart 1 with 1 worker" in result.stderr
    assert "Timeout (" not in result.stderr and "most recent call" not in result.stderr


def test_without_being_asked_nothing_is_restarted(place):
    """`unisono run` alone starts a script once: it may not be able to go on where it stopped."""
    result = place.run(ONCE + "print('run', flush=True)\nos._exit(3)\n", "-n1")
    assert (result.returncode, result.stdout) == (3, "run\n")


def test_the_budget_ends(place):
    """A program that always fails is given up, with the code of its last failure."""
    result = place.run("import os\nprint('run', flush=True)\nos._exit(3)\n", "-n1", "--max-restarts", "2")
    assert (result.returncode, result.stdout) == (3, "run\n" * 3)
    assert "2 restarts in a row made no progress (--max-restarts); the last attempt ended before the first step" in (
        result.stderr
    )


def test_a_wrong_setting_wins(place):
    """Where one rank finds a setting wrong, that is shown, with code 2, whoever fails first; and it is not retried."""
    result = place.run(
        """
        import os, time
        from unisono.errors import ConfigError, LeaderFailed
        print("run", flush=True)
        if os.environ["RANK"] == "0":
            time.sleep(0.5)
            raise ConfigError("expected out to be a directory.")
        raise LeaderFailed("rank 0 stopped the run")
        """,
        "-n2",
        "--max-restarts",
        "3",
    )
    assert result.returncode == 2
    assert "rank 0 of 2 failed with ConfigError: expected out to be a directory." in result.stderr
    assert "No restart: the same program would fail again." in result.stderr
    assert len(result.stdout.splitlines()) == 2


def test_a_mistake_of_all_ranks_is_told_once_and_not_restarted(place):
    """A missing name before the first step: one text for all ranks, one traceback, no second attempt."""
    result = place.run("print('run', flush=True)\nmodle\n", "-n3", "--max-restarts", "2")
    assert (result.returncode, result.stdout.count("run")) == (1, 3)
    assert result.stderr.startswith("unisono run: all 3 ranks failed alike with NameError: name 'modle'")
    assert result.stderr.count("Traceback") == 1 and "Restart 1" not in result.stderr
    assert "No restart: every worker has met it before the first step" in result.stderr


def test_a_dying_child_does_not_hide_the_failure(place):
    """A handler of SIGCHLD that raises, as torch's for data loading processes, does not get into the report."""
    result = place.run(
        """
        import os, signal, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        def complain(*_):
            raise RuntimeError("DataLoader worker is killed")
        signal.signal(signal.SIGCHLD, complain)
        class Real(Exception):
            def __str__(self):
                child.kill()
                child.wait()
                return "the real failure"
        raise Real
        """,
        "-n1",
    )
    assert result.returncode == 1
    assert "Real: the real failure" in result.stderr
    assert "DataLoader" not in result.stderr


def test_a_killed_launcher_leaves_no_directory(place, note):
    """The private directory goes with the launcher, also when that cannot clean up."""
    launcher = place.start(note + "note(f'pid-{RANK}')\nwhile True: time.sleep(0.05)\n", "-n2")
    place.wait_files("pid-*[0-9]", 2)
    assert list(place.folder.glob("unisono-*"))
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 10
    while list(place.folder.glob("unisono-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not list(place.folder.glob("unisono-*"))


def test_meeting_places(place):
    """Where a killed worker's processes met with it goes with the launch: no ``pymp-*`` of Python's is left."""
    result = place.run(
        """
        import multiprocessing, os, signal, sys, time
        from multiprocessing.connection import Listener
        def listen(pipe):
            with Listener(family="AF_UNIX") as here:
                pipe.send(here.address)
                time.sleep(60)
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.Process(target=listen, args=(theirs,))
        child.start()
        address = ours.recv()
        assert os.path.exists(address)
        print(address, flush=True)
        os.kill(child.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        "-n1",
    )
    assert result.returncode == 137, result.stderr
    assert result.stdout.startswith(f"{place.folder}/unisono-")
    assert [path.name for path in place.folder.iterdir()] == ["script.py"]


def test_the_next_launch_clears_up(place, note):
    """After a kill of launcher and reaper at once the directory stays, and the next launch removes it, not before."""
    launcher = place.start(note + "note(f'pid-{RANK}')\nwhile True: time.sleep(0.05)\n", "-n1")
    place.wait_files("pid-*[0-9]", 1)
    (left,) = place.folder.glob("unisono-*")
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    (reaper,) = (int(pid) for pid in children if str(left) in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                 and "launchers.worker" not in Path(f"/proc/{pid}/cmdline").read_text())  # fmt: skip
    beside = place.run("pass\n", "-n1")  # the first still lives
    assert beside.returncode == 0, beside.stderr
    assert left.exists()
    os.kill(reaper, signal.SIGKILL)
    launcher.kill()
    launcher.wait()
    assert left.exists()
    beside = place.run("pass\n", "-n1")
    assert beside.returncode == 0, beside.stderr
    assert not list(place.folder.glob("unisono-*"))


def test_a_signal_between_attempts_is_heard(place, note):
    """Ctrl-C in a storm of restarts ends the launch."""
    launcher = place.start(
        note + "signal.signal(signal.SIGINT, signal.SIG_IGN)\nnote(f'pid-{os.getpid()}')\nos._exit(3)\n",
        "-n1", "--max-restarts", "100000",
    )  # fmt: skip
    place.wait_files("pid-*[0-9]", 3)
    launcher.send_signal(signal.SIGINT)
    assert place.finish(launcher).returncode == 130


class FailingPopen:
    """`subprocess.Popen` that cannot start rank 1 after the first attempt."""

    def __init__(self, real):
        self.real, self.attempts = real, 0

    def __call__(self, command, **options):
        rank = options.get("env", {}).get("RANK")
        self.attempts += rank == "0"
        if rank == "1" and self.attempts > 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return self.real(command, **options)


def test_a_slot_that_cannot_be_started_any_more(tmp_path, monkeypatch, capfd):
    """When the system lets a restart have fewer processes, the run goes on with those; at first it is an error."""
    script = tmp_path / "script.py"
    script.write_text(ONCE + f"if once({str(tmp_path / 'died')!r}): os._exit(3)\n")
    monkeypatch.setattr(forking.subprocess, "Popen", FailingPopen(forking.subprocess.Popen))
    local.run_local(LaunchSpec(target=ScriptTarget(path=str(script)), workers=2, max_restarts=5))
    told = capfd.readouterr().err
    assert "could not be started" in told
    assert "Slot 1 keeps failing and is given up" in told


def test_a_death_by_signal_says_what_is_known(tmp_path):
    """Nobody guesses at memory when the kernel has counted no such kill."""
    script = tmp_path / "script.py"
    script.write_text("import os\nos.kill(os.getpid(), 9)\n")
    with pytest.raises(WorkerFailed, match="from outside: no out-of-memory kill has been counted since") as caught:
        local.run_local(LaunchSpec(target=ScriptTarget(path=str(script)), output="quiet"))
    assert caught.value.exit_code == 137


def test_memory_kills_are_called_that(tmp_path, monkeypatch):
    """When the kernel's counter has grown meanwhile, SIGKILL was probably that."""
    script = tmp_path / "script.py"
    script.write_text("import os\nos.kill(os.getpid(), 9)\n")
    counts = iter(range(100))
    monkeypatch.setattr("unisono.launchers.attempt.count_kills", lambda: next(counts))
    with pytest.raises(
        WorkerFailed, match="out of memory: since the start the kernel has counted 1 out-of-memory kill"
    ):
        local.run_local(LaunchSpec(target=ScriptTarget(path=str(script)), output="quiet"))


def test_heavy_modules_stay_out(place):
    """The supervisor imports no torch."""
    program = "import sys, unisono.launchers.local; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert place.finish(place.popen(sys.executable, "-c", program)).stdout == "False False\n"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "stopped before the first step; this launch has written no checkpoint. Start again with: unisono "),
        (
            "heartbeat.done(8); heartbeat.saved(8)",
            "stopped at once, 8 steps were done; the newest checkpoint is of step 8. Go on with: unisono ",
        ),
        (
            "heartbeat.ends(8); heartbeat.done(8); heartbeat.saved(8)",
            "stopped after the last step: all 8 steps are done and saved, the run is complete.",
        ),
    ],
)
def test_an_interrupted_run_says_what_is_kept(place, note, said, told):
    """Ctrl-C where the run cannot stop between two steps: how far it came, what is kept, and the very command."""
    body = note + (
        "from unisono.system.heartbeat import HeartbeatPage\n"
        "heartbeat = HeartbeatPage(os.environ['UNISONO_HEARTBEAT'])\n"
        f"heartbeat.join(os.getpid()); {said}\n"
        "note(f'pid-{RANK}')\nwhile True: time.sleep(0.05)\n"
    )
    launcher = place.start(body, "-n2", args=("two words",))
    place.wait_files("pid-*[0-9]", 2)
    launcher.send_signal(signal.SIGINT)
    result = place.finish(launcher)
    assert (result.returncode, result.stdout) == (130, "")
    (line,) = result.stderr.splitlines()
    assert told in line
    # the test starts the verb without its name
    assert line.endswith(" with: unisono -n2 script.py 'two words'") != ("complete" in told)


@pytest.mark.parametrize("state", ["STOPPED", "STEPPING"])
def test_a_run_that_has_saved_may_take_its_time_to_end(place, note, state):
    """What is left at the end of its program (a tracker that sends its last lines) makes no failed stop of it."""
    body = note + (
        "from unisono.system import heartbeat as beats\n"
        "heartbeat = beats.HeartbeatPage(os.environ['UNISONO_HEARTBEAT'])\n"
        "heartbeat.join(os.getpid()); heartbeat.set_state(beats.STEPPING)\n"
        "note(f'pid-{RANK}')\n"
        "while not heartbeat.is_stop_asked: time.sleep(0.01)\n"
        f"heartbeat.done(8); heartbeat.saved(8); heartbeat.set_state(beats.{state})\n"
        "while True: time.sleep(0.05)\n"
    )
    launcher = place.start(body, "-n2", "--stop-grace", "2")
    place.wait_files("pid-*[0-9]", 2)
    launcher.send_signal(signal.SIGINT)
    assert place.finish(launcher).returncode == (75 if state == "STOPPED" else 130)


SILENT = """
import os, time
from unisono.system.heartbeat import HeartbeatPage
page = HeartbeatPage(os.environ["UNISONO_HEARTBEAT"])
page.join(os.getpid())
while True:
    time.sleep(0.02)
    if not os.environ["UNISONO_HEARTBEAT"].endswith("-2"):
        page.beat()
"""


@pytest.mark.slow
def test_one_that_waits_to_join_and_shows_no_sign_of_life(tmp_path, capfd):
    """It is killed as a worker would be, so that another one can be started; those that beat are left alone."""
    (tmp_path / "script.py").write_text(SILENT)
    spec = LaunchSpec(
        target=ScriptTarget(path=str(tmp_path / "script.py")), workers=2, live="auto", spares=1, heartbeat_s=2, hang_s=0
    )
    deadline = time.monotonic() + 120
    with scratch_directory() as directory:
        group = WorkerGroup(spec, directory, queue.SimpleQueue())
        live = LiveRecovery(spec.ranks, group.channels.send, print, Replacements(2, spares=1))
        try:
            group.start(1)
            assert live.start() == [2]
            group.add(2)
            group.guests = live.guests
            supervisor = Supervisor(group, live)
            while 2 in group.running:
                assert time.monotonic() < deadline, capfd.readouterr()
                supervisor.look()
                if (event := next_event(group._events, time.monotonic() + 0.1)) is not None:
                    group.note(event)
            assert (group.running, [*group.killed], group.exits[2].code) == ([0, 1], [2], -signal.SIGKILL)
        finally:
            group.close()
    assert "rank 2 has shown no sign of life for 2 s" in capfd.readouterr().err
