"""The two trees of sources, the commit's and the present one, and how a process is held to one of them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TAIL = 5
"""Last lines of a launch that failed."""
GUARD = Path(__file__).parent / "guard"
WORLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "UNISONO_RENDEZVOUS")


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Sources of unisono.

    Attributes:
        name: ``base`` or ``present``; its files are kept below a directory of this name.
        source: The directory that holds the package, ``src``.
        words: What it is, for people.
    """

    name: str
    source: Path
    words: str

    def environment(self, seen: Path, caches: Path) -> dict[str, str]:
        """Return the variables of a process that imports this tree, whatever is installed.

        Args:
            seen: File in which each process says where its unisono comes from.
            caches: Directory for what is kept between runs: each tree cuts the texts into tokens itself.
        """
        kept = {name: value for name, value in os.environ.items() if name not in WORLD}
        return kept | {
            "PYTHONPATH": os.pathsep.join([str(GUARD), str(self.source)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "XDG_CACHE_HOME": str(caches / self.name),
            "SAME_BITS_SRC": str(self.source),
            "SAME_BITS_SEEN": str(seen),
        }


def present_tree() -> Tree:
    """Return the working tree as it is, also what is not committed."""
    try:
        changed = len(_git("status", "--porcelain", "--", "src").splitlines())
        words = f"the working tree at {_git('log', '-1', '--format=%h %s')}"
    except ValueError:  # sources without git
        changed, words = 0, f"the sources of {ROOT}"
    return Tree(name="present", source=ROOT / "src", words=words + (f", {changed} changed in src" if changed else ""))


@contextlib.contextmanager
def base_tree(commit: str, folder: Path) -> Iterator[Tree]:
    """Check a commit out into `folder` for as long as it is needed.

    Raises:
        ValueError: There is no such commit, or no git.
    """
    words = _git("log", "-1", "--format=%h %s", f"{commit}^{{commit}}", "--")
    _git("worktree", "add", "--quiet", "--detach", str(folder), f"{commit}^{{commit}}")
    try:
        yield Tree(name="base", source=folder / "src", words=words)
    finally:
        _git("worktree", "remove", "--force", str(folder))


def run(tree: Tree, command: list[str], *, where: Path, caches: Path, workers: int, limit_s: float) -> str:
    """Run ``unisono COMMAND`` of a tree in the directory `where`, which gets its output.

    Returns:
        What was wrong; empty where nothing was.
    """
    where.mkdir(parents=True, exist_ok=True)
    seen = where / "processes.txt"
    seen.unlink(missing_ok=True)
    with (where / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "unisono", *command], cwd=where, env=tree.environment(seen, caches),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            code = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return f"still at work after {limit_s:.0f} s"
        finally:
            process.kill()  # its workers end with it
            process.wait()
    if code != 0:
        said = [line for line in (where / "output.txt").read_text(errors="replace").splitlines() if line.strip()]
        return "\n  ".join([f"exit code {code}" + (":" if said else ", no output"), *said[-TAIL:]])
    return _check_homes(tree, seen, workers)


def _check_homes(tree: Tree, seen: Path, workers: int) -> str:
    """Return what is wrong with where the processes had unisono from: launcher and workers must have said it."""
    lines = {line.partition(" ")[::2] for line in seen.read_text().splitlines()} if seen.exists() else set()
    strangers = {home for _, home in lines if Path(home) != (tree.source / "unisono").resolve()}
    if strangers:
        return f"unisono came from {', '.join(sorted(strangers))}"
    if len(lines) < workers + 1:
        return f"{len(lines)} of {workers + 1} processes have said where their unisono comes from"
    return ""


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ValueError("git is not installed.") from None
    if done.returncode != 0:
        raise ValueError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
