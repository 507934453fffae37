"""Where a record comes from: the machine, the commit, the command; and whether its sources are those of today."""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def machine() -> str:
    """Return cores, processor, memory, system and versions in one line, and no name of the machine."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    parts = [f"{cores} cores of {model[1].strip() if model else platform.machine()}", f"{memory:.0f} GiB"]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    system = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    return ", ".join([*parts, system, f"Python {platform.python_version()}", f"torch {version('torch')}"])


def commit() -> str | None:
    """Return the short hash of what is checked out, with "+" where src or a benchmark has changed; None outside git."""
    try:
        short = _git("rev-parse", "--short=10", "HEAD")
        changes = _git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{short}+" if changes else short


def is_same_source(commit: str, program: Path) -> bool:
    """Whether ``src`` and the program are as in that commit; one of a tree with changes ("+") is like none."""
    if commit.endswith("+"):
        return False
    compared = ["git", "-C", str(ROOT), "diff", "--quiet", commit, "--", "src", str(program)]
    return subprocess.run(compared, check=False, stderr=subprocess.DEVNULL).returncode == 0


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def command_line(arguments: Sequence[str] | None = None) -> str:
    """Return how this program was started: without --out, DIR and FILE in the place of absolute paths."""
    script, *words = sys.argv if arguments is None else arguments
    words = [word for before, word in zip([script, *words], words, strict=False)
             if "--out" not in (before, word.partition("=")[0])]  # fmt: skip
    shown = [re.sub(r"(?<![\w.])/[^\s=]+", lambda path: "DIR" if Path(path[0]).is_dir() else "FILE", word)
             for word in words]  # fmt: skip
    return shlex.join(["python", f"benchmarks/{Path(script).name}", *shown])
