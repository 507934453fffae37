"""``program.json``: which script a run was made by, whether its files are still the same, what a resume says if not."""

import json
import sys
import types
from pathlib import Path

import pytest
from torch.nn import functional as F

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


def edit(text, *names):
    return lambda home: [(home / name).write_text(text) for name in names]


@pytest.fixture
def script(tmp_path, monkeypatch, capfd, toy):
    """Trains in this process as a launch of a script of four files would; returns what it says beside warnings."""
    names = ["train.py", "beside.py", "net.py", "loss.py"]
    edit("x", *names)(tmp_path)
    for name in names:
        monkeypatch.setitem(sys.modules, "__main__" if name == names[0] else name, module_of(tmp_path / name))

    def train(*, epochs=2, loop=None, **settings):
        capfd.readouterr()
        if loop is None:
            toy.train(out=tmp_path / "run", epochs=epochs, **settings)
        else:
            with toy.run(out=tmp_path / "run") as (run, model, _):
                loop(run, model)
        return [line for line in capfd.readouterr().err.splitlines() if line.startswith("unisono:")]

    train.home, train.toy = tmp_path, toy
    train.resumed = f"unisono: {tmp_path}/run resumed after step 5 of 10, from its last checkpoint"
    train.changed = (
        f"unisono: {tmp_path}/run goes on with another program than up to step 5: {{}}. Hint: if it computes something "
        f"else (loss, transform, ...), choose another --out (out=), or unisono fork {tmp_path}/run --step 5 --out DIR; "
        "a comment or a print changes nothing."
    )
    return train


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda _: sys.argv.append("--plain") or sys.modules.pop("net.py"), None),
        (edit("y", "beside.py"), "beside.py has changed"),
        (lambda home: sys.modules.pop("net.py") and (home / "net.py").unlink(), "net.py is gone"),
        (lambda home: setattr(sys.modules["net.py"], "__file__", str(home / "new.py")), "new.py is new"),
        (
            edit("y", "train.py", "beside.py", "net.py", "loss.py"),
            "beside.py has changed, loss.py has changed, net.py has changed, and 1 more",
        ),
    ],
    ids=["argument", "helper", "gone", "new", "many"],
)
def test_a_resume_tells_what_has_changed(script, monkeypatch, change, named):
    """In one line behind the one that says where it goes on; replay finds the newest program, as always.

    Not another argument, with which a file may no longer be imported.
    """
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert script(epochs=1) == []
    edit("z", "new.py")(script.home)
    change(script.home)
    assert script() == [script.resumed, *([] if named is None else [script.changed.format(named)])]
    assert json.loads((script.home / "run" / "program.json").read_text())["args"] == sys.argv[1:]
    assert changed_files(read_program(script.home / "run")) == []


def test_it_is_told_once(script):
    """Not to a restart before the next checkpoint; nor where the program is again what made the checkpoint."""
    script(epochs=1)
    edit("y", "train.py")(script.home)
    told = [script.resumed, script.changed.format("train.py has changed")]
    assert script(stop_after=5) == told
    assert script(stop_after=5) == told[:1]
    edit("x", "train.py")(script.home)
    assert script(stop_after=5) == told[:1]
    edit("w", "train.py")(script.home)
    assert script() == told


def test_a_launch_that_computes_nothing_is_not_the_newest(script):
    """What made the steps is still known behind it."""
    script(epochs=1)
    edit("y", "train.py")(script.home)
    (complete,) = script(epochs=1)
    assert "is complete" in complete
    assert changed_files(read_program(script.home / "run")) == [f"{script.home}/train.py has changed"]
    assert script() == [script.resumed, script.changed.format("train.py has changed")]


def test_in_a_loop_over_epochs(script):
    """Behind the loops that were done before, where the first step follows."""

    def loop(run, model):
        for epoch in range(2):
            for batch in run.steps(run.loader(script.toy.data, batch_size=12), epochs=epoch + 1):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))

    script(epochs=1)
    edit("y", "train.py")(script.home)
    assert script(loop=loop)[-2:] == [script.resumed, script.changed.format("train.py has changed")]


@pytest.mark.parametrize("text", ["", '{"before": {"step": "x"}}'])
def test_nothing_is_said_where_nothing_is_known(script, text):
    """Of an older version's run, which has the program from then on, even if there is nothing to compute."""
    script(epochs=1)
    path = script.home / "run" / "program.json"
    path.write_text(text)
    if not text:
        script(epochs=1)
        assert changed_files(read_program(script.home / "run")) == []
        path.unlink()
    edit("y", "train.py")(script.home)
    assert script() == [script.resumed]
    assert changed_files(read_program(script.home / "run")) == []


def test_a_program_that_has_moved_is_the_same(script, tmp_path_factory):
    """Its files are known by their names below the script's directory."""
    script(epochs=1)
    other = tmp_path_factory.mktemp("moved")
    for name in ("train.py", "beside.py", "net.py", "loss.py"):
        edit("x" if name != "net.py" else "y", name)(other)
        sys.modules["__main__" if name == "train.py" else name].__file__ = str(other / name)
    assert script()[1:] == [script.changed.format("net.py has changed")]
