"""Launches on this host: output, exit codes, the true culprit, old scripts."""

import re
import stat
import sys
from pathlib import Path

import pytest

from unisono.launchers.local import _on_slots
from unisono.launchers.spec import LaunchSpec, ScriptTarget
from unisono.system.devices import Gpu


def test_lines_carry_their_rank(place):
    """Every line of every rank has its prefix, on the stream it was written to, also without newline."""
    result = place.run(
        """
        import os, sys
        for i in range(300):
            print("line", i, "x" * 50)
        print("error of", os.environ["RANK"], end="", file=sys.stderr)
        """,
        "-n2",
    )
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    for rank in (0, 1):
        own = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        assert own == [f"[rank {rank}] line {i} {'x' * 50}" for i in range(300)]
    assert len(lines) == 600
    assert sorted(result.stderr.splitlines()) == ["[rank 0] error of 0", "[rank 1] error of 1"]


def test_one_worker_writes_directly(place):
    """With one worker nothing comes between it and the terminal."""
    result = place.run("import sys; sys.stdout.write('10%\\r20%'); sys.stderr.write('e')", "-n1")
    assert (result.stdout, result.stderr) == ("10%\r20%", "e")


def test_leader_output(place):
    """Rank 0 writes directly; the others' lines go to the error output with their rank."""
    body = "import os, sys; sys.stdout.write('\\rbar ' + os.environ['RANK'])"
    result = place.run(body, "-n2", "--output", "leader")
    assert (result.stdout, result.stderr) == ("\rbar 0", "[rank 1] bar 1\n")


def test_large_output_without_newline(place):
    """A worker that writes far more than a pipe holds is never blocked for ever."""
    result = place.run("import sys; sys.stdout.write('x' * 3_000_000)", "-n2")
    assert result.returncode == 0
    assert result.stdout.count("x") == 6_000_000


def test_reader_went_away(place):
    """With ``| head -1`` the launch ends, with the code of a broken pipe and without noise."""
    process = place.start("while True: print('again', flush=True)", "-n2")
    assert process.stdout.readline().startswith(b"[rank ")
    process.stdout.close()
    assert process.wait(timeout=20) == 141
    assert b"Traceback" not in process.stderr.read()


def test_script_runs_as_itself(place):
    """The script sees what ``python script.py args`` shows it, and its main module outlives its last line."""
    result = place.run(
        """
        import atexit, os, pickle, sys
        class Config: pass
        atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Config()))).__name__))
        print(__name__, sys.argv, os.path.basename(__file__))
        print(sys.path[0] == os.getcwd(), "torch" in sys.modules)
        """,
        "-n1",
        args=("-n", "9", "--help", "--", "x"),
    )
    assert result.stdout.splitlines() == [
        "__main__ ['script.py', '-n', '9', '--help', '--', 'x'] script.py",
        "True False",
        "Config",
    ]


def test_module(place):
    """A module runs as under ``python -m``, relative imports included."""
    (place.folder / "pkg").mkdir()
    place.write("", "pkg/__init__.py")
    place.write("NAME = 'sibling'", "pkg/other.py")
    place.write("import sys; from .other import NAME; print(__name__, NAME, sys.argv[1:])", "pkg/__main__.py")
    process = place.popen(sys.executable, "-c", "from unisono.cli.run import run; run()", "-n2", "-m", "pkg", "--flag")
    assert place.finish(process).stdout.count("__main__ sibling ['--flag']") == 2


def test_working_directory_does_not_shadow(place):
    """A file of the working directory named like a standard module does not break the start-up."""
    (place.folder / "sub").mkdir()
    place.write("raise RuntimeError('shadowed')", "json.py")
    place.write("print('fine')", "sub/script.py")
    code = "import sys; sys.path.remove(''); from unisono.cli.run import run; run()"
    assert place.finish(place.popen(sys.executable, "-c", code, "-n1", "sub/script.py")).stdout == "fine\n"


def test_private_directory(place):
    """The rendezvous lies in a directory that only the user can enter, and that is gone afterwards."""
    result = place.run(
        """
        import os
        folder = os.path.dirname(os.environ["UNISONO_RENDEZVOUS"])
        print(folder, oct(os.stat(folder).st_mode))
        """,
        "-n1",
    )
    folder, mode = result.stdout.split()
    assert stat.S_IMODE(int(mode, 8)) == 0o700
    assert not Path(folder).exists()


def test_exit_code_of_the_script(place):
    """The exit code is the failing rank's, and the others are stopped long before they would end."""
    result = place.run(
        """
        import os, sys, time
        if os.environ["RANK"] == "1":
            sys.exit(7)
        time.sleep(50)
        """,
        "-n2",
    )
    assert result.returncode == 7
    assert "rank 1 of 2 called sys.exit(7)" in result.stderr


def test_exit_with_text(place):
    """``sys.exit("text")`` prints the text, as always, and counts as failure."""
    result = place.run("import sys; sys.exit('no data')", "-n1")
    assert result.returncode == 1
    assert result.stderr.startswith("no data\n")


def test_traceback_starts_in_the_script(place):
    """The traceback has the user's frames only: none of the start-up."""
    result = place.run("def work():\n    raise ValueError('boom')\nwork()\n", "-n1")
    assert result.returncode == 1
    files = re.findall(r'File "(.*?)"', result.stderr)
    assert [Path(file).name for file in files] == ["script.py", "script.py"]
    assert result.stderr.startswith("unisono run: rank 0 of 1 failed with ValueError: boom\n")


def test_syntax_error(place):
    """A script that does not parse is shown with the line."""
    result = place.run("x = (\n", "-n1")
    assert result.returncode == 1
    assert "SyntaxError" in result.stderr and "script.py" in result.stderr and "child" not in result.stderr


def test_our_errors_have_no_traceback(place):
    """An error of ours shows message and place only."""
    result = place.run(
        """
        from unisono.errors import DataError
        raise DataError("expected 3 bytes, got 2.")
        """,
        "-n1",
    )
    assert "DataError: expected 3 bytes, got 2." in result.stderr
    assert "script.py:3" in result.stderr
    assert "Traceback" not in result.stderr


def test_death_by_signal(place):
    """A rank killed from outside is named with its signal, and the exit code follows the shell's custom."""
    result = place.run(
        """
        import os, signal, time
        if os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(50)
        """,
        "-n2",
    )
    assert result.returncode == 137
    assert "rank 0 of 2 was killed by SIGKILL (exit code 137), from outside" in result.stderr


def test_segfault_leaves_a_stack(place):
    """A fault in native code shows where Python was."""
    result = place.run("import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()\n", "-n1")
    assert result.returncode == 139
    assert "Segmentation fault" in result.stderr and "in crash" in result.stderr


@pytest.mark.slow
def test_failed_worker_that_cannot_end(place):
    """A thread that keeps a failed worker alive delays the verdict by seconds, not for ever."""
    result = place.run(
        """
        import os, threading, time
        if os.environ["RANK"] == "1":
            threading.Thread(target=time.sleep, args=(50,)).start()
            raise ValueError("boom")
        time.sleep(50)
        """,
        "-n2",
    )
    assert result.returncode == 1
    assert "rank 1 of 2 failed with ValueError: boom" in result.stderr


def test_wrong_usage(place):
    """Wrong options, numbers and missing scripts are code 2, before anything starts."""
    run = "from unisono.cli.run import run; run()"
    for options in (["--no-such-option", "x.py"], ["-n", "0", "x.py"], ["x.py"], ["-n", "two", "x.py"], []):
        result = place.finish(place.popen(sys.executable, "-c", run, *options))
        assert result.returncode == 2, options
        assert "Traceback" not in result.stderr


def test_threads_do_not_depend_on_workers(place):
    """One worker and two get the same thread settings."""
    body = """
        import os
        print(*(os.environ[name] for name in ("OMP_NUM_THREADS", "OMP_DYNAMIC", "MKL_DYNAMIC")))
    """
    one, two = place.run(body, "-n1").stdout, place.run(body, "-n2").stdout
    assert one == "1 FALSE FALSE\n"
    assert set(two.splitlines()) == {f"[rank {rank}] 1 FALSE FALSE" for rank in (0, 1)}


def test_true_culprit_among_blocked_ranks(place):
    """One rank fails while the others wait for it in a collective: one traceback is shown, the right one.

    The script is one for torchrun: it meets through env://.
    """
    result = place.run(
        """
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        print("sum", int(total))
        if dist.get_rank() == 1:
            raise ValueError("the true reason")
        dist.all_reduce(total)
        """,
        "-n2",
    )
    assert result.returncode == 1
    assert result.stdout.count("sum 2") == 2
    assert result.stderr.count("Traceback (most recent call last)") == 1
    assert "rank 1 of 2 failed with ValueError: the true reason" in result.stderr
    assert "Connection closed" not in result.stderr


def test_launches_at_once_get_their_own_ports(place, note):
    """Ten launches at once hold ten ports, and rank 0 of each can listen on its own, on all interfaces."""
    body = note + (
        "import socket\n"
        "port = int(os.environ['MASTER_PORT'])\n"
        "server = socket.socket(socket.AF_INET6)\n"
        "server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "server.bind(('::', port))\n"
        "server.listen()\n"
        "note(f'port-{os.getpid()}', port)\n"
        "while not os.path.exists('all-listen'): time.sleep(0.02)\n"
    )
    launches = [place.start(body, "-n1") for _ in range(10)]
    ports = place.wait_files("port-*[0-9]", 10)
    (place.folder / "all-listen").touch()
    assert [place.finish(launch).returncode for launch in launches] == [0] * 10
    assert len(set(ports)) == 10


def test_a_slot_is_the_first_attempts_device():
    """However many slots have been given up before, each other one keeps the device it had."""
    first = LaunchSpec(target=ScriptTarget(path="a.py"), workers=4, devices=("4", "5", "6", "7"))
    fewer = _on_slots(first, (0, 2, 3), first)
    assert fewer.devices == ("4", "6", "7")
    assert _on_slots(fewer, (0, 3), first).devices == ("4", "7")


@pytest.mark.parametrize(("visible", "told"), [("0", None), ("", None), (" 4, 5 ,6,7", "4,6,7"), ("4,5,99,7", None)])
def test_a_slot_is_a_device_only_where_each_had_one(monkeypatch, visible, told):
    """Four workers on a host of one GPU compute on the CPU, and go on there when a slot is given up."""
    monkeypatch.setattr("unisono.system.machine._own_gpus", lambda: [Gpu("")] * 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    first = LaunchSpec(target=ScriptTarget(path="a.py"), workers=4)
    assert _on_slots(first, (0, 2, 3), first).env.get("CUDA_VISIBLE_DEVICES") == told
