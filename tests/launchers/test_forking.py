"""Workers that are forked from a process which has loaded torch; here mostly a module of that name that takes notes."""

import os
import queue
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from places import RUN
from unisono.launchers.forking import ForkServer, modules_for
from unisono.launchers.spec import FunctionTarget, LaunchSpec, ModuleTarget, ScriptTarget

TORCH = """
    import os
    with open("loads", "a") as file:
        file.write(f"{os.getpid()}\\n")
"""


@pytest.fixture
def loads(place):
    """Put our torch where a worker finds it; return who has loaded it."""
    place.write(TORCH, "torch.py")
    place.env["PYTHONPATH"] = str(place.folder)
    return lambda: [int(line) for line in (place.folder / "loads").read_text().split()]


def test_torch_is_loaded_once(place, loads):
    """Three workers, and two that start again in their places: children of the launcher all the same."""
    done = place.run(
        """
        import os, sys, torch
        about = open("/proc/self/comm").read().strip(), os.getsid(0) == os.getpid(), os.environ["LOCAL_RANK"]
        print(*about, os.getppid(), "script.py" in open("/proc/self/cmdline").read(), *sys.argv[1:])
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.exit(3)
        """,
        "-n3", "--max-restarts=1", args=("--lr", "1"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(loads()) == 1
    launcher = place.started[-1].pid
    said = f"[rank {{0}}] unisono-rank{{0}} True {{0}} {launcher} True --lr 1"
    lines = done.stdout.splitlines()
    assert {*lines} == {said.format(rank) for rank in range(3)}
    assert lines.count(said.format(0)) == 2


@pytest.mark.parametrize(
    ("body", "options", "number"),
    [
        ("import torch", ("-n1",), 1),
        ("import torch", ("-n1", "--max-restarts=1"), 1),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch", ("-n2",), 2),
        ("import os\nos.environ['MASTER_PORT'] = '2'\nimport torch", ("-n2",), 1),
    ],
)
def test_how_often_it_is_loaded(place, loads, body, options, number):
    """A script that sets what torch reads while it is loaded loads it itself, in each worker."""
    done = place.run(body + "\n", *options)
    assert (done.returncode, len(loads())) == (0, number), done.stderr


def test_it_can_be_switched_off(place, loads):
    """UNISONO_FORK=0: each worker is a new process."""
    place.env["UNISONO_FORK"] = "0"
    done = place.run("import torch\nprint(open('/proc/self/comm').read().strip())\n", "-n2")
    assert (done.stdout.count("unisono-rank"), len(loads())) == (0, 2), done.stderr


def test_where_ends_of_children_are_ignored(place, loads):
    """By the program that starts the launcher: their codes are known all the same."""
    place.write("import sys, torch\nprint(open('/proc/self/comm').read())\nsys.exit(len(sys.argv) - 1)\n")
    ignoring = f"import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); {RUN}"
    done = place.finish(place.popen(sys.executable, "-c", ignoring, "-n2", "script.py"))
    assert (done.returncode, done.stdout.count("unisono-rank"), len(loads())) == (0, 2, 1), done.stderr
    done = place.finish(place.popen(sys.executable, "-c", ignoring, "-n2", "script.py", "1", "2", "3"))
    assert done.returncode == 3, done.stderr


def test_input_goes_to_the_first_rank(place, loads):
    """And only to that one."""
    place.write("import sys, torch\nprint(sys.stdin.read())\n")
    process = place.popen(sys.executable, "-m", "unisono", "run", "-n2", "script.py", stdin=subprocess.PIPE)
    out, err = process.communicate(b"words", timeout=120)
    assert (b"[rank 0] words" in out, b"[rank 1] words" in out, len(loads())) == (True, False, 1), err


def test_random_numbers_of_numpy_differ(place, loads):
    """They would be the same in all, forked from one state."""
    place.write(TORCH + "\n    import numpy.random\n", "torch.py")
    done = place.run("import torch, numpy, random\nprint(numpy.random.rand(), random.random())\n", "-n2")
    first, second = (line.split()[2:] for line in done.stdout.splitlines())
    assert not {*first} & {*second}
    assert len(loads()) == 1


def test_threads_of_linear_algebra_are_none_that_matter(place, loads):
    """OpenBLAS, which NumPy brings, starts them as it is loaded and ends them at a fork; a worker has them again."""
    place.write(TORCH + "\n    import numpy\n", "torch.py")
    done = place.run(
        """
        import os, torch, numpy
        before = len(os.listdir("/proc/self/task"))
        numpy.ones((500, 500)) @ numpy.ones((500, 500))
        print(before, len(os.listdir("/proc/self/task")))
        """,
        "-n2", "--threads=2",
    )  # fmt: skip
    assert (done.returncode, len(loads())) == (0, 1), done.stderr
    after = min(2, len(os.sched_getaffinity(0)))
    assert {*done.stdout.splitlines()} == {f"[rank {rank}] 1 {after}" for rank in range(2)}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(1,), daemon=True).start()", ""),
        ("raise ImportError('torn wheel')", "torn wheel"),
        ("import os, sys\nif 'fork_server' in ' '.join(sys.orig_argv): os._exit(9)", ""),
    ],
)
def test_where_none_can_be_forked_each_is_started(place, loads, more, told):
    """A thread in the server, a torch that cannot be loaded, a server that dies: each worker loads, and shows, it."""
    place.write(textwrap.dedent(TORCH) + more + "\n", "torch.py")
    done = place.run("import torch\nprint('well')\n", "-n2")
    assert (done.returncode, done.stdout.count("well")) == ((1, 0) if told else (0, 2)), done.stderr
    assert done.stderr.count("Traceback") == (1 if told else 0)
    assert told in done.stderr
    assert len(loads()) == 3 or told  # the first to fail ends the other


def test_what_torch_says_while_it_is_loaded_is_shown_once(place, loads):
    """A warning of a library, for example; not at all with --output quiet."""
    place.write(TORCH + "\n    import sys\n    print('a warning', file=sys.stderr)\n", "torch.py")
    assert place.run("import torch\n", "-n2").stderr.count("a warning") == 1
    assert place.run("import torch\n", "-n2", "--output=quiet").stderr.count("a warning") == 0
    assert len(loads()) == 2


WAITS = """
    import os, time
    with open("loads", "a") as file:
        file.write(f"{os.getpid()}\\n")
    while not os.path.exists("go"):
        time.sleep(0.01)
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_while_torch_is_loaded(place, loads, signum, code):
    """It is not waited for, and nothing is left behind."""
    place.write(WAITS, "torch.py")
    launcher = place.start("import torch\nopen('began', 'w')\n", "-n2")
    place.wait(lambda: (place.folder / "loads").exists() and loads(), 60)
    launcher.send_signal(signum)
    assert place.finish(launcher, 20).returncode == code
    place.wait_gone(loads(), 10)
    assert not (place.folder / "began").exists()
    if signum != signal.SIGKILL:
        assert not [*place.folder.glob("unisono-*")]


def test_a_second_attempt_waits_for_the_same_server(place, loads, monkeypatch):
    """The first was called off while torch was loaded, and the second has a queue of its own; events stay in order."""
    place.write(WAITS, "torch.py")
    monkeypatch.chdir(place.folder)
    server = ForkServer(["torch"], place.env, is_quiet=True)
    try:
        first, second = queue.SimpleQueue(), queue.SimpleQueue()
        first.put("off")
        assert server.load(first, (str,)) == "off"
        for number in range(3):
            second.put(number)
        (place.folder / "go").touch()
        assert server.load(second, (str,)) is None
        assert [second.get_nowait() for _ in range(3)] == [0, 1, 2]
        assert server.load(queue.SimpleQueue(), (str,)) is None
    finally:
        server.close()


def test_a_server_that_is_killed(place, note, loads):
    """Its workers go on, also to their good end; one that starts again loads torch itself."""
    launcher = place.start(
        note + textwrap.dedent("""
        import torch, sys, time, os
        again = os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
        note(f"pid-{RANK}-{again}")
        while not os.path.exists("go"):
            time.sleep(0.01)
        sys.exit(0 if again else 3)
        """),
        "-n2", "--max-restarts=1",
    )  # fmt: skip
    workers = place.wait_files("pid-*-False", 2)
    (server,) = loads()
    os.kill(server, signal.SIGKILL)
    place.wait_gone([server], 20)
    assert all(Path(f"/proc/{pid}").exists() for pid in workers)
    (place.folder / "go").touch()
    assert place.finish(launcher).returncode == 0
    assert len(loads()) == 3


def test_a_server_that_is_stopped(place, note, loads):
    """It is not waited for for ever: the worker that starts again loads torch itself."""
    body = textwrap.dedent("""
        import torch, sys, time, os
        again = os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
        note(f"pid-{RANK}-{again}")
        while not os.path.exists("go"):
            time.sleep(0.01)
        sys.exit(0 if again else 3)
        """)
    place.write(note + body)
    hasty = f"from unisono.launchers import forking; forking._ANSWER_S = 0.5; {RUN}"
    launcher = place.popen(sys.executable, "-c", hasty, "-n2", "--max-restarts=1", "script.py")
    place.wait_files("pid-*-False", 2)
    (server,) = loads()
    os.kill(server, signal.SIGSTOP)
    (place.folder / "go").touch()
    assert place.finish(launcher).returncode == 0
    assert len(loads()) == 3
    place.wait_gone([server], 10)


def test_a_launcher_that_is_killed(place, note, loads):
    """Server and workers end with it."""
    launcher = place.start(note + "import torch, time\nnote(f'pid-{RANK}')\nwhile True: time.sleep(0.05)\n", "-n2")
    workers = place.wait_files("pid-*[0-9]", 2)
    launcher.kill()
    place.wait_gone([*workers, *loads()], 20)


def _script(folder, body):
    (folder / "script.py").write_text(body)
    return ScriptTarget(path=str(folder / "script.py"))


@pytest.mark.parametrize(
    ("body", "loaded"),
    [
        ("print(1)", ()),
        ("import torch", ("torch",)),
        ("from torch.nn import Linear", ("torch",)),
        ("import numpy, unisono.data", ("torch", "unisono.train.run")),
        ("def main():\n    import transformers", ("torch",)),
        ("import torchless", ()),
        ("from .torch import x", ()),
        ("not Python", ()),
        ("import os, torch\nprint(os.environ['OMP_NUM_THREADS'])", ("torch",)),
        ("import os, torch\nos.environ['WANDB_MODE'] = 'off'", ("torch",)),
        ("import os, torch\nos.environ.setdefault('MASTER_ADDR', 'localhost')", ("torch",)),
        ("import os, torch\nos.environ.setdefault('MKL_NUM_THREADS', '1')", ()),
        ("import os, torch\nos.environ.setdefault('OMP_NUM_THREADS', '1')", ("torch",)),  # a worker has it
        ("from os import environ\nimport torch\ndel environ['TORCH_LOGS']", ()),
        ("import os, torch\nos.environ.update(LD_PRELOAD='x')", ()),
        ("import os, torch\nos.environ[name()] = 'x'", ()),
        ("import os, torch\nos.putenv('KMP_AFFINITY', 'x')", ()),
        ("import torch\n{}.update(OMP_NUM_THREADS=1)", ("torch",)),
    ],
)
def test_what_is_loaded_for_a_script(tmp_path, monkeypatch, body, loaded):
    """What it imports, unless it sets variables of which torch takes notice while it is loaded."""
    monkeypatch.setattr("unisono.launchers.forking.find_gpus", lambda environ: ())
    assert modules_for(LaunchSpec(target=_script(tmp_path, body), workers=2), {}) == loaded


@pytest.mark.parametrize(
    ("name", "body", "loaded"),
    [
        ("net.py", "import torch", ("torch",)),
        ("net.py", "import torch, os\nos.environ['OMP_NUM_THREADS'] = '4'", ()),
        ("net/__init__.py", "import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch", ()),
        ("net/own.py", "import torch", ("torch",)),
        ("other.py", "import torch", ()),
        ("net.py", "import net, train\nfrom train import x\nimport torch", ("torch",)),  # in a circle
    ],
)
def test_modules_beside_the_script(tmp_path, monkeypatch, name, body, loaded):
    """They are looked at, too: what they set counts, and what they import."""
    monkeypatch.setattr("unisono.launchers.forking.find_gpus", lambda environ: ())
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(body)
    script = _script(tmp_path, "import net\nfrom net import own\n")
    assert modules_for(LaunchSpec(target=script, workers=2), {}) == loaded


@pytest.mark.parametrize("line", ["from . import early", "from .early import x", "from ..net import early"])
def test_modules_of_a_package_beside_the_script(tmp_path, monkeypatch, line):
    """Those that a package imports by relative names, too."""
    monkeypatch.setattr("unisono.launchers.forking.find_gpus", lambda environ: ())
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "__init__.py").write_text(f"{line}\nimport torch\n")
    (tmp_path / "net" / "early.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nx = 1\n")
    assert modules_for(LaunchSpec(target=_script(tmp_path, "import net\n"), workers=2), {}) == ()


def test_what_is_loaded_for_others(tmp_path, monkeypatch):
    """Our own functions need all; a program's, what the program has loaded; a module is not looked for."""
    monkeypatch.setattr("unisono.launchers.forking.find_gpus", lambda environ: ())

    def of(**settings):
        return modules_for(LaunchSpec(**{"workers": 2} | settings), {})

    ours = FunctionTarget(module="unisono.recipes.execution", name="x", payload=b"")
    assert of(target=ours) == ("torch", "unisono.train.run", "unisono.recipes.execution")
    theirs = FunctionTarget(module="theirs", name="x", payload=b"")
    monkeypatch.setitem(sys.modules, "torch", object())
    assert "torch" in of(target=theirs)
    monkeypatch.delitem(sys.modules, "torch")
    assert "torch" not in of(target=theirs)
    assert of(target=ModuleTarget(name="json")) == ()
    script = _script(tmp_path, "import torch")
    assert of(target=script, backend="shm") == ()
    assert (of(target=script, workers=1), of(target=script, workers=1, max_restarts=1)) == ((), ("torch",))
    assert modules_for(LaunchSpec(target=script, workers=2), {"UNISONO_FORK": "0"}) == ()


def test_none_is_forked_where_there_are_gpus(tmp_path, monkeypatch):
    """CUDA cannot be used in a process that was forked from one which has asked for devices."""
    monkeypatch.setattr("unisono.launchers.forking.find_gpus", lambda environ: ("0", "1"))
    script = _script(tmp_path, "import torch")
    assert modules_for(LaunchSpec(target=script, workers=2), {}) == ()
    assert modules_for(LaunchSpec(target=script, workers=2, devices=("0", "1")), {}) == ()
    assert modules_for(LaunchSpec(target=script, workers=2, devices=()), {}) == ("torch",)


@pytest.mark.parametrize("was", [0, 1])
def test_a_process_adopts_no_longer_than_asked(was):
    """What the program has set for itself stays: orphans of its own go where they went before."""
    program = f"""
import ctypes
from unisono.system.processes import adopting
prctl, found = ctypes.CDLL(None).prctl, ctypes.c_int()
prctl(36, {was}, 0, 0, 0)
with adopting() as can:
    prctl(37, ctypes.byref(found), 0, 0, 0)
    print(can, found.value)
prctl(37, ctypes.byref(found), 0, 0, 0)
print(found.value)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "1", str(was)]
