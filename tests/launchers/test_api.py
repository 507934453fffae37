"""``launch``: functions on several processes."""

import functools
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import launched_functions
import pytest

from unisono.errors import ConfigError, LaunchError, UnisonoError, WorkerFailed
from unisono.launchers import api
from unisono.launchers.api import launch


def notes(folder):
    return [path.read_text() for path in sorted(folder.glob("note-*"))]


def no_processes(monkeypatch):
    monkeypatch.setattr(api, "run_local", lambda spec: pytest.fail("a process was about to start"))


@pytest.mark.parametrize("workers", [1, 2])
def test_launch(tmp_path, workers):
    """Every worker runs the function with the arguments, also a single one in its own process."""
    launch(launched_functions.leave_note, tmp_path, "words", workers=workers, number=5)
    assert notes(tmp_path) == [f"{rank}/{workers} words 5" for rank in range(workers)]


def test_the_result_of_rank_0_comes_back():
    """One value, that of rank 0, with objects in it; None where nothing is returned."""
    found = launch(launched_functions.give, "object", workers=2)
    assert isinstance(found["found"], launched_functions.Found) and found["found"].rank == 0
    assert found["ranks"] == [0, 0]
    assert launch(launched_functions.give, "nothing", workers=1) is None


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("lambda", "a function, which cannot be pickled: .*"),
        ("unloadable", ".*this process cannot load: .*no_module_.*"),
    ],
)
def test_a_result_that_cannot_come_back(kind, said, capfd):
    """It is told once all workers have ended, in one line, and fails nothing: who returns what, and what to return."""
    assert launch(launched_functions.give, kind, workers=1) is None
    match = rf"unisono: give\(\) has ended well on every worker; on rank 0 it returned {said}: launch\(\) returns None"
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "returned" in line]
    assert re.match(match, line)


def test_failure_is_raised_here(tmp_path):
    """The caller gets the worker's traceback as the text of one exception."""
    with pytest.raises(WorkerFailed, match="rank 1 of 2 failed with ValueError: the worker's own words") as caught:
        launch(launched_functions.fail, tmp_path, workers=2)
    assert (caught.value.rank, caught.value.exit_code) == (1, 1)
    assert 'launched_functions.py", line' in str(caught.value)


def test_what_launch_refuses_shows_the_callers_line_only():
    """A wrong number of workers, a keyword that nobody has: one message, and no frame of ours, in a notebook either."""
    for given in ({"workers": -1}, {"bda": 3}):
        with pytest.raises(UnisonoError) as caught:
            launch(launched_functions.fail, ".", **given)
        assert [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)] == [__file__]


def test_from_another_thread(tmp_path):
    """A launch from a thread works and leaves the signal handlers alone."""
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=launch, args=(launched_functions.leave_note, tmp_path), kwargs={"workers": 2})
    thread.start()
    assert signal.getsignal(signal.SIGTERM) is before
    thread.join(timeout=60)
    assert len(notes(tmp_path)) == 2


def test_handlers_are_restored(tmp_path):
    """After a launch the program's signal handlers are its own again."""
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    launch(launched_functions.leave_note, tmp_path, workers=1)
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers


def test_inside_a_world(tmp_path, monkeypatch):
    """Under a launcher the function is called in this very process."""
    no_processes(monkeypatch)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("UNISONO_REPLICAS", "8")
    launch(launched_functions.leave_note, tmp_path, workers=4, replicas=4)
    assert launch(launched_functions.give, "object", workers=4)["ranks"] == [0, 0]
    assert notes(tmp_path) == ["0/1  0"]
    assert os.environ["UNISONO_REPLICAS"] == "8"  # who started this process decides


def test_script(place):
    """A script launches its own function; the part under the main guard runs once."""
    name = place.write(
        """
        import os
        from dataclasses import dataclass
        from unisono.launchers.api import launch

        @dataclass
        class Config:
            lr: float

        def train(config, replicas_expected):
            assert isinstance(config, Config)
            print("training", config.lr, os.environ["UNISONO_REPLICAS"] == replicas_expected, flush=True)

        if __name__ == "__main__":
            print("once", flush=True)
            launch(train, Config(0.5), workers=2, replicas=4, replicas_expected="4")
            print("after", flush=True)
        """
    )
    result = place.python(name)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("once", "after")
    assert sorted(lines[1:-1]) == ["[rank 0] training 0.5 True", "[rank 1] training 0.5 True"]
    assert place.python("-m", "script").stdout.splitlines()[-1] == "after"


def test_script_without_guard(place):
    """A launch at the top level of a script is refused in the workers instead of running twice."""
    name = place.write(
        """
        from unisono.launchers.api import launch
        def train():
            print("ran")
        launch(train, workers=1)
        """
    )
    result = place.python(name)
    assert result.returncode == 1
    assert "ran" not in result.stdout
    assert 'if __name__ == "__main__"' in result.stderr


WITHOUT = "import sys; sys.modules['cloudpickle'] = None\n"  # as where it is not installed


def test_notebook(place):
    """Without cloudpickle a function without a file is refused with both fixes."""
    code = WITHOUT + "from unisono.launchers.api import launch\ndef train(): pass\nlaunch(train, workers=1)"
    result = place.python("-c", code)
    assert result.returncode == 1
    assert "LaunchError" in result.stderr
    assert "from train import train; unisono.launch(train, ...)" in result.stderr
    assert "pip install cloudpickle" in result.stderr


CELLS = """
import os
from dataclasses import dataclass
from unisono.launchers.api import launch

@dataclass
class Config:
    lr: float

scale = 3

def scaled(number):
    return number * scale

def train(config, note):
    assert isinstance(config, Config)
    print("rank", os.environ["RANK"], scaled(config.lr), note(2), flush=True)

launch(train, Config(0.5), lambda number: number + scale, workers=2)
"""


def test_an_interactive_session(place):
    """A function typed at the prompt, its helpers, classes and values go to two workers as they are at that moment."""
    typed = CELLS + "\nscale = 4\nlaunch(train, Config(1), abs, workers=1)\n"
    session = subprocess.run(
        [sys.executable, "-i"], input=typed, env=place.env, cwd=place.folder, capture_output=True, text=True, check=True
    )
    assert "Traceback" not in session.stderr
    lines = session.stdout.splitlines()
    assert sorted(lines[:2]) == ["[rank 0] rank 0 1.5 5", "[rank 1] rank 1 1.5 5"]
    assert lines[2:] == ["rank 0 4 2"]


@pytest.mark.slow
def test_a_cell_of_a_notebook(tmp_path, monkeypatch):
    """The same in a kernel of Jupyter."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # under which a kernel does not show what its processes print
    cells = [nbformat.v4.new_code_cell(part) for part in CELLS.split("\n\n")]
    book = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(book, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    told = "".join(output["text"] for output in book.cells[-1]["outputs"] if output.get("name") == "stdout")
    assert sorted(told.splitlines()) == ["[rank 0] rank 0 1.5 5", "[rank 1] rank 1 1.5 5"]


def test_a_nested_function_and_a_lambda(tmp_path):
    """With cloudpickle both are launched, with copies of what they use; what cannot be copied is named."""
    folder = str(tmp_path)

    def inner(text):
        launched_functions.leave_note(folder, text, number=7)

    launch(inner, "words", workers=2)
    assert notes(tmp_path) == ["0/2 words 7", "1/2 words 7"]
    launch(lambda: launched_functions.leave_note(folder, "short"), workers=1)
    assert notes(tmp_path)[0] == "0/1 short 0"
    lock = threading.Lock()
    with pytest.raises(LaunchError, match=r"<lambda> or its arguments use cannot be pickled: .*lock[\s\S]*Hint"):
        launch(lambda: lock.acquire(), workers=2)


def test_ctrl_c_in_a_script(place, note):
    """Ctrl-C during a launch is the script's own KeyboardInterrupt, after the workers are gone."""
    name = place.write(
        """
        import os, signal, sys, time
        import launched_functions
        from unisono.launchers.api import launch
        if __name__ == "__main__":
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                launch(launched_functions.wait_for, os.getcwd(), workers=2)
            except KeyboardInterrupt:
                sys.exit(5)
        """
    )
    place.env["PYTHONPATH"] = str(Path(__file__).parent)
    process = place.popen(sys.executable, name)
    pids = place.wait_files("note-*", 2)
    process.send_signal(signal.SIGINT)
    result = place.finish(process)
    assert (result.returncode, result.stderr) == (5, "")
    place.wait_gone(pids, 1.0)


def nested():
    def inner():
        pass

    return inner


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, "the lambda"),
        (nested(), "the nested function"),
        (launched_functions.Holder().method, "the method"),
        (launched_functions.Holder, "expected a function"),
        (functools.partial(launched_functions.fail, "x"), "expected a function"),
        (launched_functions.original, "new processes would import that"),
    ],
    ids=["lambda", "nested", "method", "class", "partial", "decorated"],
)
def test_functions_that_cannot_be_imported(monkeypatch, function, words):
    """Without cloudpickle, what new processes cannot import is refused before any starts, with the fix."""
    no_processes(monkeypatch)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(LaunchError, match=rf"{words}[\s\S]*Hint") as caught:
        launch(function, workers=2)
    assert "expected" in str(caught.value)


def test_a_call_in_place_of_a_function(monkeypatch):
    """What a training returned is no function and no script, and is shown in part."""
    no_processes(monkeypatch)
    hint = r"Hint: give the function and its arguments, launch\(train, arg, key=value\), not what train\(.* returned"
    for given, shown in (
        ("9575e6" * 11, r"'(9575e6){9}9575e\.\.\. of type str"),
        (["a model\n" * 99, 1], r"\[.{58,59}\.\.\. of type list"),
    ):
        with pytest.raises(LaunchError, match=rf"^expected a function, got {shown}\. {hint}\.$"):
            launch(given, workers=2)


def test_arguments_that_cannot_be_pickled(monkeypatch):
    """The argument that cannot travel is named."""
    no_processes(monkeypatch)
    with pytest.raises(LaunchError, match="got argument 2 of type lock"):
        launch(launched_functions.leave_note, "x", threading.Lock(), workers=2)
    with pytest.raises(LaunchError, match="got number of type lock"):
        launch(launched_functions.leave_note, "x", number=threading.Lock(), workers=2)


def test_wrong_settings(monkeypatch):
    """Wrong counts are refused before any process starts."""
    no_processes(monkeypatch)
    for settings in ({"workers": 0}, {"workers": 3, "replicas": 2}, {"workers": 1, "threads": 0}):
        with pytest.raises(ConfigError):
            launch(launched_functions.leave_note, "x", **settings)


def test_keywords_that_nobody_has(monkeypatch):
    """A misspelt one, which would reach the function in each worker, is refused before anything starts."""
    no_processes(monkeypatch)
    for given, said in (
        ({"worker": 2}, r"worker=\. Hint: did you mean workers=\?"),
        ({"num_processes": 2}, r"num_processes=\. Hint: did you mean workers=\?"),
        ({"zzz": 2}, r"zzz=; it has folder, text, number, workers, threads, .*elastic\."),
    ):
        with pytest.raises(LaunchError, match=rf"^neither launch\(\) nor leave_note\(\) has {said}$"):
            launch(launched_functions.leave_note, "x", **given)


def test_keywords_that_the_function_has(monkeypatch):
    """Control: its own go to it; one that takes any keyword gets any."""
    started = []
    monkeypatch.setattr(api, "run_local", started.append)
    launch(launched_functions.leave_note, "x", number=3, workers=1)
    launch(launched_functions.take_all, worker=2, workers=1)
    assert len(started) == 2


def test_arguments_travel_privately(tmp_path, monkeypatch):
    """The pickled arguments lie in a file that only the user can read."""
    from unisono.launchers.spec import LaunchSpec
    from unisono.launchers.worker_group import _program

    target = api.describe_function(launched_functions.leave_note, ("secret",))
    _program(LaunchSpec(target=target), str(tmp_path))
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert pickle.loads(pickle.loads(file.read_bytes())["payload"]) == (("secret",), {})
