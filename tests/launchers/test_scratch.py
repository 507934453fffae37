"""Directories for temporary files: private, removed at the end, and by the next launch where a kill has left them."""

import contextlib
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from unisono.errors import ConfigError
from unisono.launchers import scratch
from unisono.launchers.scratch import collect, scratch_directory

MAKE = """
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from unisono.launchers.scratch import scratch_directory
with scratch_directory("test") as place:
    open(place + "/file", "w").close()
    os.makedirs(place + "/deep/er")
    os.symlink(sys.argv[1] + "/elsewhere", place + "/deep/link")
    if "fork" in sys.argv and os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    print(place, flush=True)
    if "die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
"""
RACE = """
import json, os, random, sys, tempfile, time
from unisono.launchers.scratch import collect, scratch_directory
tempfile.tempdir = sys.argv[1]
lost = removed = 0
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    with scratch_directory() as place:
        with open(place + "/mine", "w") as file:
            file.write(str(os.getpid()))
        removed += len(collect(sys.argv[1]))
        lost += not os.path.isfile(place + "/mine")
print(json.dumps([lost, removed]))
"""


@pytest.fixture
def home(monkeypatch, tmp_path_factory):
    """A place for temporary files of its own, and a directory that is nobody's to remove; sockets need a short path."""
    tmp_path_factory.getbasetemp()  # chosen for all tests that follow, so not while temporary files go elsewhere
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        place = Path(folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        scratch._collect_once.cache_clear()
        (place / "elsewhere").mkdir()
        (place / "elsewhere" / "file").touch()
        yield place
        assert (place / "elsewhere" / "file").exists()
        scratch._collect_once.cache_clear()


def names_in(home):
    return sorted(path.name for path in home.iterdir() if path.name != "elsewhere")


@contextlib.contextmanager
def maker(home, *words):
    """Another process that has made a directory; yields it and the process."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(home), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Path(process.stdout.readline().strip()), process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            pipe.close()


def test_it_is_private_and_goes_at_the_end(home):
    """Mode 0700, a name that says whose it is, and nothing is left, also where a program ends with an error."""
    with scratch_directory("verify") as place:
        assert Path(place).parent == home
        assert Path(place).name.startswith("unisono-verify-")
        assert Path(place).stat().st_mode & 0o777 == 0o700
    with pytest.raises(KeyError), scratch_directory() as place:
        (Path(place) / "file").touch()
        raise KeyError
    assert names_in(home) == []


def test_what_a_killed_process_has_left_goes_with_the_next(home):
    """Not while it lives, nor while a child that it forked does; then the next launch removes it, links unfollowed."""
    with maker(home) as (place, process):
        assert collect(str(home)) == []
        assert (place / "file").exists()
        process.kill()
        process.wait()
        assert names_in(home) == [place.name]
        with scratch_directory() as ours:
            assert names_in(home) == [Path(ours).name]
    with maker(home, "fork") as (place, process):
        process.wait()
        assert collect(str(home)) == []
        process.communicate()  # the end of its input: the child ends by itself, and leaves what it has not made
    assert names_in(home) == [place.name]
    assert collect(str(home)) == [place.name]


MEET = """
import multiprocessing, os, signal, sys, tempfile, time
from multiprocessing.connection import Listener
from unisono.launchers.scratch import meet
tempfile.tempdir = sys.argv[1]
if "plain" not in sys.argv:
    meet()
    meet()
def listen(pipe):
    with Listener(family="AF_UNIX") as here:
        pipe.send(here.address)
kept = Listener(family="AF_UNIX")  # its socket is removed when the process ends, before the directory is
ours, theirs = multiprocessing.Pipe()
child = multiprocessing.Process(target=listen, args=(theirs,))
child.start()
print(os.path.dirname(ours.recv()))
child.join()
if os.fork() == 0:
    sys.exit()  # must not take its parent's directory along
os.wait()
assert "plain" in sys.argv or os.listdir(sys.argv[1]) != ["elsewhere"]
sys.stdout.flush()
if "die" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("words", [[], ["die"], ["plain", "die"]])
def test_where_processes_meet_outside_a_launch(home, words):
    """A program of its own leaves nothing when it ends, and what the next launch removes where it is killed.

    The control: plain multiprocessing, whose directory nobody may remove.
    """
    done = subprocess.run(
        [sys.executable, "-c", MEET, str(home), *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == (-signal.SIGKILL if "die" in words else 0), done.stderr
    assert done.stderr == ""
    place = Path(done.stdout.strip())
    assert place.name.startswith("pymp-" if "plain" in words else "unisono-")
    left = names_in(home)
    assert left == ([] if words != ["die"] else [place.name]) or "plain" in words
    assert collect(str(home)) == ([] if words != ["die"] else [place.name])
    assert names_in(home) == (left if "plain" in words else [])


def test_what_may_not_be_removed(home, tmp_path):
    """A stranger's, an open one, a link, another boot's, an older version's: all stay. The control goes."""
    with maker(home, "die") as (place, process):
        process.wait()
    stays = {}
    boot = scratch.boot_id()[:8]
    for number, what in enumerate(("open to others", "stranger", "older version", "other boot", "other name")):
        name = f"unisono-{boot}-{number:08d}"
        if what == "older version":
            name = "unisono-abcd1234"
        elif what == "other boot":
            name = f"unisono-{'0' * 8 if boot != '0' * 8 else '1' * 8}-12345678"
        elif what == "other name":
            name = f"unisono-{boot}-12345678-x"
        stays[what] = home / name
        stays[what].mkdir(mode=0o700)
        (stays[what] / "file").touch()
    stays["open to others"].chmod(0o755)
    if os.geteuid() == 0:
        os.chown(stays["stranger"], 65534, 65534)
    else:
        shutil.rmtree(stays.pop("stranger"))
    stays["link"] = home / f"unisono-{boot}-abcdefgh"
    stays["link"].symlink_to(home / "elsewhere")
    assert collect(str(home)) == [place.name]
    for what, path in stays.items():
        assert (path / "file").exists(), what


def test_launches_that_come_at_once(home):
    """Processes that make, use and collect directories as fast as they can never lose one that is in use."""
    left = []
    for _ in range(3):
        with maker(home, "die") as (place, process):
            process.wait()
        left.append(place)
    players = [
        subprocess.Popen([sys.executable, "-c", RACE, str(home), "1.0"], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    told = [json.loads(player.communicate(timeout=60)[0]) for player in players]
    assert [lost for lost, _ in told] == [0] * 4
    assert names_in(home) == []
    assert not any(place.exists() for place in left)


def test_without_the_lock_a_living_one_would_be_lost(home, monkeypatch):
    """The control of the race: a collector that asks nobody removes what is in use."""
    with maker(home) as (place, _):
        monkeypatch.setattr(fcntl, "flock", lambda *_: None)
        assert collect(str(home)) == [place.name]


def test_a_file_system_without_locks(home, monkeypatch):
    """There the directory gets a name that no launch collects, and works."""

    def unsupported(*_):
        raise OSError(9, "Bad file descriptor")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", unsupported)
        with scratch_directory() as place:
            name = Path(place).name
            patch.undo()
            assert collect(str(home)) == []
            assert names_in(home) == [name]
            assert len(name) == len("unisono-12345678")
    assert names_in(home) == []


@pytest.mark.parametrize("words", [["run", "x.py"], ["verify", "digits"]])
def test_no_place_for_temporary_files(tmp_path, words):
    """One line that says so and how to mend it, and exit code 2, instead of two tracebacks."""
    (tmp_path / "x.py").touch()

    def take_no_byte():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = subprocess.run(
        [sys.executable, "-m", "unisono", *words],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, preexec_fn=take_no_byte,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "temporary files that can be written, got: no file may grow. Hint: ulimit -f unlimited; this" in done.stderr
    assert "Hint: " in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_full_disk_for_temporary_files(home, monkeypatch):
    """What the system says is told."""
    monkeypatch.setattr(tempfile, "tempdir", str(home / "not there"))
    with pytest.raises(ConfigError, match=r"got: No such file or directory\. Hint: .*TMPDIR"), scratch_directory():
        pass


def test_an_interrupt_while_it_is_made_leaves_nothing(home, monkeypatch):
    """SIGINT comes as soon as the directory is there; it waits until its path is known, and the directory goes."""
    make = tempfile.mkdtemp
    made = []

    def interrupted(*args, **kwargs):
        made.append(make(*args, **kwargs))
        signal.raise_signal(signal.SIGINT)  # to this thread: other tests may have left some that do not hold it back
        return made[-1]

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), scratch_directory():
            raise AssertionError("the interrupt comes before the block begins")
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(made) == 1
    assert not Path(made[0]).exists()
