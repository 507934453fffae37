"""What a target is that is no Python script, and what to do with it: before any process starts, not in each of them.

In: what was typed, and the first bytes of files. Out: words for a message. Must not import torch.
"""

import ast
import contextlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Container, Iterable
from pathlib import Path

COMMAND = "command.json"  #: Of a run directory: the ``command`` that started the newest launch, and its ``directory``.
_HEAD_BYTES = 1024
_GIVE_PATH = "give the path of the script; for a module write -m NAME."
_OTHER_KINDS = {
    ".ipynb": ("a notebook", "jupyter nbconvert --to script {path}, and start the .py file that it writes."),
    ".json": ("a JSON file", "give the path of the script."),
    ".toml": ("a TOML file", "unisono train --config {path} for a recipe's settings; else the path of a script."),
    ".yaml": ("a YAML file", "give the path of the script; its settings come after it."),
    ".yml": ("a YAML file", "give the path of the script; its settings come after it."),
    ".csv": ("a table", "give the path of the script."),
    ".pt": ("saved weights", "give the path of the script."),
    ".pyc": ("a compiled file", "give the path of its .py file."),
}
_LOAD_TORCH = {"torch", "unisono", "accelerate", "lightning", "pytorch_lightning", "torchvision", "transformers"}
_SETTERS = {"setdefault", "update", "pop", "clear"}
# Of OpenMP, the libraries of linear algebra, the C library, Python and torch itself.
_READ_BY_TORCH = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ATEN_", "DNNL_", "ONEDNN_", "TORCH", "PYTORCH_",
                  "CUDA_", "LD_", "GLIBC_", "MALLOC_", "PYTHON")  # fmt: skip


def instead_of_recipe(typed: str, recipes: Iterable[str]) -> str:
    """Return what to write where this was typed in place of a recipe: a script, a directory of a run, another path."""
    path = Path(typed)
    if typed.endswith(".py") or os.path.isfile(typed):
        return shlex.join(["unisono", "run", typed])
    if command := of_a_run(path):
        return f"{command} goes on with that run"
    if "/" in typed or os.path.isdir(typed):
        recipe = next((name for name in recipes if name in path.name), "RECIPE")
        return f"{shlex.join(['unisono', 'train', recipe, '--out', typed])} keeps a run there, or goes on with it"
    return "`unisono run SCRIPT` trains a model of your own"


def of_a_run(path: Path) -> str:
    """Return the command that goes on with the run of a directory; nothing where it is the directory of none.

    The one by which its newest launch was started, from its directory; older runs know their options or their script.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # another launcher's run, or an older one
        told = json.loads((path / COMMAND).read_text())
        command, directory = str(told["command"]), str(told["directory"])
        return command if Path(directory).samefile(".") else f"cd {shlex.quote(directory)} && {command}"
    if os.path.isfile(path / "run.toml"):
        return shlex.join(["unisono", "train", "--config", str(path), "--out", str(path)])
    try:
        told = json.loads((path / "program.json").read_text())
        script = os.path.relpath(told["script"])
        return shlex.join(["unisono", "run", told["script"] if script.startswith("..") else script, *told["args"]])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def names_us(path: str) -> bool:
    """Return whether a script's text has the name of this package: one that has not begins no run."""
    try:
        return b"unisono" in Path(path).read_bytes()
    except OSError:
        return False


def what_it_loads(path: str, environment: Container[str] = ()) -> frozenset[str]:
    """Return which of torch and unisono a script, with the modules beside it, imports; or a library built on torch.

    Nothing, too, where one of them sets variables that are read while torch is loaded: that must happen first
    then. A default for one that `environment` has sets nothing.
    """
    found, files, seen = set[str](), [Path(path)], set[Path]()
    while files:
        file = files.pop()
        seen.add(file)
        try:
            nodes = [*ast.walk(ast.parse(file.read_bytes()))]
        except (OSError, SyntaxError, ValueError):
            return frozenset()
        if any(_sets_what_torch_reads(node, environment) for node in nodes):
            return frozenset()
        names = {name for node in nodes for name in _imported(node)}
        found |= {name.partition(".")[0] for name in names}
        places = {(Path(path).parent, name) for name in names} | {
            place for node in nodes for place in _imported_from_here(node, file)
        }
        files += {each for folder, name in places for each in _beside(folder, name)} - seen
    return frozenset({"unisono"} & found | ({"torch"} if found & _LOAD_TORCH else set()))


def _imported(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports, by their whole names; also what may be one in a package."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _imported_from_here(node: ast.AST, file: Path) -> list[tuple[Path, str]]:
    """Return what a statement of `file` imports by a relative name: the package's directory, and the name in it."""
    if not isinstance(node, ast.ImportFrom) or not 0 < node.level <= len(file.parents):
        return []
    before = f"{node.module}." if node.module else ""
    return [(file.parents[node.level - 1], f"{before}{alias.name}") for alias in node.names]


def _beside(folder: Path, name: str) -> list[Path]:
    """Return the files of a module that lies beside a script, with those of the packages that it is in."""
    parts = name.split(".")
    places = [folder.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
    return [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]


def _sets_what_torch_reads(node: ast.AST, environment: Container[str]) -> bool:
    name: ast.expr | None = None
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and _is_environ(node.value):
        name = node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr != "putenv" and not (_is_environ(node.func.value) and node.func.attr in _SETTERS):
            return False
        name = node.args[0] if node.args else None
        if name is None:
            return True
        if node.func.attr == "setdefault" and isinstance(name, ast.Constant) and name.value in environment:
            return False
    if name is None:
        return False
    return not isinstance(name, ast.Constant) or str(name.value).startswith(_READ_BY_TORCH)


def _is_environ(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) == "environ"


def why_not_a_script(typed: str) -> str | None:
    """Return what is wrong with the path of a script and how to mend it; None where Python can be let at it."""
    path = Path(typed)
    # os.path and not pathlib, which raises where a name is too long.
    if os.path.isdir(path):
        module = typed.strip("./").replace("/", ".") or "NAME"
        hint = f"-m {module} starts its __main__.py." if (path / "__main__.py").is_file() else _GIVE_PATH
        if command := of_a_run(path):
            shown = shlex.join(["unisono", "report", typed])
            return f"got the directory of a run. Hint: {command} goes on with it; {shown} shows it."
        return f"got a directory (in {str(Path.cwd())!r}). Hint: {hint}"
    is_file = os.path.isfile(path)
    if not is_file and (typed == "-" or os.path.lexists(path)):  # /dev/stdin, and what <(...) gives
        what = "the standard input" if typed in ("-", "/dev/stdin") else "a pipe or device"
        return f"got {what}, which only one worker could read, once. Hint: save the program in a file: cat > train.py."
    if not is_file:
        return f"got nothing (in {str(Path.cwd())!r}). Hint: {_meant(typed)}"
    kind, hint = _OTHER_KINDS.get(path.suffix.lower(), ("", ""))
    if not kind:
        kind, hint = _kind_of(path)
    shown = typed if "/" in typed else f"./{typed}"
    return f"got {kind}. Hint: {hint.format(path=shown)}" if kind else None


def why_not_a_module(name: str) -> str:
    """Return the hint for a module that is not there."""
    if os.path.isfile(name) or name.endswith(".py"):
        return f"leave -m out: {name} is a file."
    if "/" in name:
        return f"-m {name.strip('./').replace('/', '.')}, with dots."
    return "start a file without -m; a module must be installed or lie in the working directory."


def _meant(typed: str) -> str:
    if re.fullmatch(r"python[\d.]*", Path(typed).name):
        return f"leave {typed!r} out: unisono run SCRIPT starts it with {Path(sys.executable).name}."
    if shutil.which(typed) is not None:
        return f"{typed} is a program: --no-python {typed} starts it as it is."
    if os.path.isfile(f"{typed}.py"):
        return f"{typed}.py is there."
    from unisono.system.hints import near_names  # loads what a right path does not need

    place = Path(typed).parent
    there = [path.stem for path in place.glob("*.py")] if place.is_dir() else []
    near = [repr(str(place / f"{name}.py")) for name in near_names(Path(typed).stem, there)]
    return f"did you mean {' or '.join(near)}?" if near else _GIVE_PATH


def _kind_of(path: Path) -> tuple[str, str]:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return "", ""  # said elsewhere
    first = head.partition(b"\n")[0]
    if first.startswith(b"#!") and b"python" not in first:
        return f"a program for {first[2:].decode(errors='replace').strip()}", "--no-python {path} starts it as it is."
    if b"\0" in head:
        return "a file that is no text", "give the path of the script; --no-python starts a program of any kind."
    if path.suffix == ".sh":
        return "a shell script", "give the path of the Python script that it starts."
    return "", ""
