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


def nodes_of(source: str) -> list[ast.AST]:
    return [*ast.walk(ast.parse(source))]


def environment_reads(nodes: list[ast.AST]) -> list[int]:
    """Return the lines that touch the process environment."""
    touched = []
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            if node.attr in ("environ", "environb", "getenv", "putenv", "unsetenv"):
                touched.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            touched += [node.lineno for alias in node.names if alias.name in ("environ", "getenv", "putenv")]
    return touched


def imports(nodes: list[ast.AST]) -> Iterator[str]:
    """Return the top-level names of all imported modules, inside functions too."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def function_lengths(nodes: list[ast.AST]) -> Iterator[tuple[str, int]]:
    """Return every function's name and number of lines."""
    for node in nodes:
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


def device_names(nodes: list[ast.AST]) -> list[int]:
    """Return the lines whose code, not prose, names CUDA: as a kind of device, or in torch."""
    named = re.compile(r"(.*[:,])?cuda(:.*)?|torch\.cuda\b.*")
    return [
        node.lineno
        for node in nodes
        if (isinstance(node, ast.Constant) and isinstance(node.value, str) and named.fullmatch(node.value))
        or (isinstance(node, ast.Attribute) and node.attr in ("cuda", "is_cuda", "CUDA"))
    ]


def face_imports(nodes: list[ast.AST]) -> list[int]:
    """Return the lines that import the public names as a whole."""
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Import) and any(alias.name == "unisono" for alias in node.names)
    ]


def broken_rules(name: str, source: str) -> list[str]:
    """Return what a file of the package does against the rules."""
    nodes = nodes_of(source)
    room = name.partition("/")[0]
    is_rim = name in ("world.py", "environment.py", "nodes/start.py") or room in ("launchers", "cli")
    docstring = ast.get_docstring(nodes[0]) or ""
    pickles = {"pickle", "marshal", "shelve", "dill", "cloudpickle"} & set(imports(nodes))
    rules = {
        "a kind of device is named in one file, and in those that talk of it":
            bool(device_names(nodes)) == (name in NAME_DEVICES),
        "the environment is read in world.py, by the launchers and the command line":
            is_rim or not environment_reads(nodes),
        "at most 330 lines": len(source.splitlines()) <= 330,
        "no function of more than 75 lines": all(length <= 75 for _, length in function_lengths(nodes)),
        "a docstring first: a sentence": len(docstring) > 20 and docstring.rstrip()[-1] in ".:)?`",
        "only the launcher pickles: it hands functions to its own children": room == "launchers" or not pickles,
        "modules import each other, not the public face, except in recipes":
            room == "recipes" or not face_imports(nodes),
    }  # fmt: skip
    return [rule for rule, holds in rules.items() if not holds]


def test_the_source_is_found():
    """The rules are applied to something."""
    assert len(FILES) > 40
    assert {"world.py", "cli/main.py", "train/run.py"} <= {name_of(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_keeps_the_rules(path):
    assert broken_rules(name_of(path), path.read_text()) == []


START = '"""A file that says what it is."""\n'


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("world.py", START + "x = 'cuda'"),
        ("system/hints.py", START + "x = 1"),  # it is on the list, and has no need to be
        ("train/run.py", START + "import os\nos.environ['A']"),
        ("train/run.py", START + "\n" * 330),
        ("train/run.py", START + "def f():\n" + "    x = 1\n" * 75),
        ("train/run.py", "x = 1"),
        ("train/run.py", START + "def f():\n    import pickle"),
        ("train/run.py", START + "import unisono"),
    ],
)
def test_each_rule_can_be_broken(name, source):
    """The control: each is noticed, and alone."""
    assert len(broken_rules(name, source)) == 1
    assert broken_rules("train/run.py", START + "x = 1") == []


@pytest.mark.parametrize(
    "source",
    ["x.type == 'cuda'", "f('cuda:0')", "torch.cuda.synchronize()", "x.is_cuda", "f('cpu:gloo,cuda:nccl')"],
)
def test_naming_a_device_would_be_noticed(source):
    assert device_names(nodes_of(source))
    assert not device_names(nodes_of("'a GPU of cuda'\nx.to(device)"))


@pytest.mark.parametrize(
    "source", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ", "f(os.environ)"]
)
def test_reading_the_environment_would_be_noticed(source):
    """world.py shows that it applies to real files."""
    assert environment_reads(nodes_of(source))
    assert environment_reads(nodes_of((SOURCE / "world.py").read_text()))
    assert environment_reads(nodes_of("import os\nos.fsync(3)\nenviron = {}")) == []
