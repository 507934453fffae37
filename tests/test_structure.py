"""The house's own rules, read from the source."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "unisono"
FILES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def environment_reads(source: str) -> list[int]:
    """Return the lines that touch the process environment."""
    touched = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            if node.attr in ("environ", "environb", "getenv", "putenv", "unsetenv"):
                touched.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            touched += [node.lineno for alias in node.names if alias.name in ("environ", "getenv", "putenv")]
    return touched


def imports(source: str) -> Iterator[str]:
    """Return the top-level names of all imported modules, inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def function_lengths(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return every function's name and number of lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


NAME_DEVICES = {
    "determinism/devices.py": "the one file that decides",
    "determinism/flags.py": "torch's flags by their names",
    "compat/fabric/settings.py": "words of Fabric",
    "doctor/talk.py": "what torch says of its build",
    "doctor/self_test.py": "the same, read",
    "doctor/rules_placement.py": "what programs write",
    "doctor/rules_training.py": "what programs write",
    "system/hints.py": "what users may have meant",
}
"""The files that name a kind of GPU in code, and why; the list may only grow shorter."""


def device_names(source: str) -> list[int]:
    """Return the lines whose code, not prose, names CUDA: as a kind of device, or in torch."""
    tree = ast.parse(source)
    named = re.compile(r"(.*[:,])?cuda(:.*)?|torch\.cuda\b.*")
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Constant) and isinstance(node.value, str) and named.fullmatch(node.value))
        or (isinstance(node, ast.Attribute) and node.attr in ("cuda", "is_cuda", "CUDA"))
    ]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_one_file_decides_devices(path):
    """A kind of device is named in one file, and in those that talk of it."""
    assert bool(device_names(path.read_text())) == (name_of(path) in NAME_DEVICES)


@pytest.mark.parametrize(
    "source",
    ["x.type == 'cuda'", "f('cuda:0')", "torch.cuda.synchronize()", "x.is_cuda", "f('cpu:gloo,cuda:nccl')"],
)
def test_naming_a_device_would_be_noticed(source):
    """The control of the rule above."""
    assert device_names(source)
    assert not device_names("'a GPU of cuda'\nx.to(device)")


def test_the_source_is_found():
    """The rules below are applied to something."""
    assert len(FILES) > 40
    assert {"world.py", "cli/main.py", "train/run.py"} <= {name_of(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_the_rim_reads_the_environment(path):
    """They are read in world.py and environment.py, by the launchers and by the command line, and nowhere else."""
    if name_of(path) in ("world.py", "environment.py", "nodes/start.py") or name_of(path).startswith(
        ("launchers/", "cli/")
    ):
        return
    assert environment_reads(path.read_text()) == []


@pytest.mark.parametrize(
    "source", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ", "f(os.environ)"]
)
def test_reading_the_environment_would_be_noticed(source):
    """The control of the rule above, and world.py shows that it applies to real files."""
    assert environment_reads(source)
    assert environment_reads((SOURCE / "world.py").read_text())
    assert environment_reads("import os\nos.fsync(3)\nenviron = {}") == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_stay_short_and_say_what_they_are(path):
    """No file has more than 330 lines, no function more than 75, and each file begins with a docstring: a sentence."""
    text = path.read_text()
    assert len(text.splitlines()) <= 330
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree) or ""
    assert len(docstring) > 20
    assert docstring.rstrip()[-1] in ".:)?`"
    assert [name for name, length in function_lengths(tree) if length > 75] == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_pickle_stays_in_the_launcher(path):
    """Nothing that is written or read as data uses pickle: only the launcher hands functions to its own children."""
    if not name_of(path).startswith("launchers/"):
        assert not {"pickle", "marshal", "shelve", "dill", "cloudpickle"} & set(imports(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_recipes_and_the_command_line_stand_above_the_public_names(path):
    """Inside the package modules import each other, not the public face, except in recipes, which show its use."""
    tree = ast.parse(path.read_text())
    faces = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Import) and any(alias.name == "unisono" for alias in node.names)
    ]
    assert not faces or name_of(path).startswith("recipes/")
