"""``program.json``: which script a run was made by, and whether its files are still the same."""

import json
import sys
import types
from pathlib import Path

import pytest

from unisono.errors import ConfigError
from unisono.train.run_directory.program import _is_below, changed_files, describe_program, read_program


def module_of(path, **attributes):
    """Return a module as an import of that file leaves it."""
    found = types.ModuleType("it")
    found.__file__ = str(path)
    for name, value in attributes.items():
        setattr(found, name, value)
    return found


@pytest.fixture
def modules(tmp_path):
    """A script, a module beside it, one in a package, one installed below it, one that lies elsewhere."""
    places = ["train.py", "beside.py", "parts/net.py", "lib/site-packages/there.py", "native.so"]
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place)
    found = {name: module_of(tmp_path / name) for name in places}
    return {"__main__": found.pop("train.py"), **found, "json": json, "sys": sys}


def test_what_a_program_consists_of(modules, tmp_path, monkeypatch):
    """The script and the modules from below its directory: no installed ones, none from elsewhere."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "1"])
    told = describe_program(modules)
    assert told["script"] == str(tmp_path / "train.py")
    assert (told["args"], told["directory"]) == (["--lr", "1"], str(Path.cwd()))
    assert list(told["files"]) == [str(tmp_path / name) for name in ("beside.py", "parts/net.py", "train.py")]


def test_python_itself_is_no_part_of_a_program():
    """Not even where its library lies below the script's directory, as with pyenv and a script in the home."""
    script = Path(json.__file__).parents[4] / "train.py"
    assert not _is_below(script.parent, Path(json.__file__))


def test_no_script(modules, tmp_path):
    """A notebook has no file, a module is none to start again, our own files are no user's."""
    assert describe_program({}) is None
    assert describe_program({"__main__": types.ModuleType("__main__")}) is None
    assert describe_program({"__main__": module_of(tmp_path / "train.py", __spec__=json.__spec__)}) is None
    import unisono

    assert describe_program({"__main__": module_of(unisono.__file__)}) is None


def test_a_changed_file_is_named(modules, tmp_path):
    """Changed or missing, each with its path; the control: untouched files are not."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "program.json").write_text(json.dumps(describe_program(modules)))
    program = read_program(tmp_path / "run")
    assert changed_files(program) == [] and program.directory == str(Path.cwd())
    (tmp_path / "beside.py").write_text("other")
    (tmp_path / "parts" / "net.py").unlink()
    assert changed_files(program) == [
        f"{tmp_path / 'beside.py'} has changed", f"{tmp_path / 'parts' / 'net.py'} is missing",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"script": 1, "args": [], "files": {}}', '{"script": "x", "args": 3}']
)
def test_a_damaged_file_is_refused(tmp_path, text):
    """Whatever is in it; a missing one is no damage."""
    assert read_program(tmp_path) is None
    (tmp_path / "program.json").write_text(text)
    with pytest.raises(ConfigError, match=r"program\.json is not what a run writes"):
        read_program(tmp_path)
