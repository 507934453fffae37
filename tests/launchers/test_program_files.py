"""What is no Python script is refused before any process starts, with what to type instead."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from unisono.cli.run import run as run_verb
from unisono.errors import ConfigError
from unisono.launchers.program_files import instead_of_recipe, of_a_run
from unisono.launchers.spec import ModuleTarget, ScriptTarget, check_target
from unisono.launchers.supervision.failure import FailureReport, WorkerExit, describe, find_root


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files that newcomers hand to a launcher."""
    monkeypatch.chdir(tmp_path)
    files = {
        "train.py": b"print(1)", "job.sh": b"#!/bin/bash\necho", "own": b"#!/usr/bin/env python3\nprint()",
        "nb.ipynb": b"{}", "x.json": b"{}", "x.toml": b"", "pic.png": b"\x89PNG\0", "plain": b"print()",
        "empty.py": b"", "package/__main__.py": b"", "package/sub/__init__.py": b"", "package/sub/train.py": b"",
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("nothing.py", "got nothing (in "),
        ("-", "got the standard input, which only one worker could read, once. Hint: save the program in a file"),
        ("/dev/null", "got a pipe or device, which only one worker could read"),
        ("train", "Hint: train.py is there."),
        ("package/sub/trian.py", "Hint: did you mean 'package/sub/train.py'?"),
        ("package/sub/other_name.py", "Hint: give the path of the script"),
        ("python", "Hint: leave 'python' out: unisono run SCRIPT"),
        ("python3.11", "Hint: leave 'python3.11' out"),
        ("sh", "Hint: sh is a program: --no-python sh starts it as it is."),
        ("job.sh", "got a program for /bin/bash. Hint: --no-python ./job.sh starts it"),
        ("nb.ipynb", "got a notebook. Hint: jupyter nbconvert --to script ./nb.ipynb"),
        ("x.json", "got a JSON file. Hint: "),
        ("x.toml", "got a TOML file. Hint: unisono train --config ./x.toml"),
        ("pic.png", "got a file that is no text. Hint: "),
        ("package", "got a directory (in "),
        ("package/", "Hint: -m package starts its __main__.py."),
        ("package/sub", "Hint: give the path of the script; for a module write -m NAME."),
    ],
)
def test_what_is_no_script(folder, typed, told):
    """A notebook or a JSON file is valid Python, and would end well without having done anything."""
    done = CliRunner().invoke(run_verb, ["-n1", typed])
    assert done.exit_code == 2
    assert f"expected a Python file at {typed!r}, " in done.output
    assert told in done.output


def test_a_directory_of_a_run(folder):
    """What goes on with it is told: its options, or its script, wherever that lies."""
    run = folder / "runs" / "a b"
    run.mkdir(parents=True)
    assert of_a_run(run) == ""
    (run / "program.json").write_text(json.dumps({"script": str(folder / "train.py"), "args": ["--lr", "1 2"]}))
    assert of_a_run(run) == "unisono run train.py --lr '1 2'"
    (run / "program.json").write_text(json.dumps({"script": "/else/train.py", "args": []}))
    assert of_a_run(run) == "unisono run /else/train.py"
    (run / "run.toml").touch()
    assert of_a_run(run) == "unisono train --config 'runs/a b' --out 'runs/a b'".replace("runs", str(run.parent))
    told = {"command": "unisono run -n 2 train.py", "directory": str(folder)}
    (run / "command.json").write_text(json.dumps(told))
    assert of_a_run(run) == "unisono run -n 2 train.py"  # what was typed
    (run / "command.json").write_text(json.dumps(told | {"directory": str(folder.parent)}))
    assert of_a_run(run) == f"cd {folder.parent} && unisono run -n 2 train.py"
    (run / "command.json").write_text("{")
    done = CliRunner().invoke(run_verb, ["-n1", "runs/a b"])
    assert "Hint: unisono train --config 'runs/a b' --out 'runs/a b' goes on with it; unisono report" in done.output
    assert instead_of_recipe("runs/a b", ["digits"]) == f"{of_a_run(Path('runs/a b'))} goes on with that run"


@pytest.mark.parametrize("typed", ["train.py", "plain", "own", "empty.py"])
def test_whatever_python_would_run_is_let_through(folder, typed):
    """The name does not matter, nor does a first line for Python."""
    check_target(ScriptTarget(path=typed))


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("train.py", "Hint: leave -m out: train.py is a file."),
        ("package/sub", "Hint: -m package.sub, with dots."),
        ("nothing", "no module named 'nothing'. Hint: start a file without -m"),
    ],
)
def test_what_is_no_module(folder, typed, told):
    """A file or a path after -m is answered with what was meant."""
    with pytest.raises(ConfigError) as refused:
        check_target(ModuleTarget(name=typed))
    assert told in str(refused.value)


def test_input_on_a_rank_that_has_none():
    """Only rank 0 has the terminal's input; the others are told so, rank 0 is not."""
    for rank in (0, 1):
        try:
            raise EOFError("EOF when reading a line")
        except EOFError as error:
            report = FailureReport.from_exception(error, rank, 1)
        root = find_root([WorkerExit(rank=rank, code=1, time_s=1.0)], {rank: report})
        assert ("only rank 0 reads what is typed" in describe(root, 2, [], [])) == bool(rank)
