"""What the benchmarks share: options, worlds of several processes, turns, programs that are timed, and the records."""

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from results import RESULTS, ROOT, Result, write

T = TypeVar("T")
UNISONO = [sys.executable, "-m", "unisono"]


def parser_of(doc: str | None, *, rounds: int | None = None) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks; ``--rounds`` where a number of rounds is given."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, seconds; writes no record without --out")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the records go (benchmarks/results)")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, help=f"how often each way has its turn ({rounds})")
        parser.set_defaults(full_rounds=rounds)
    return parser


def rounds_of(given: argparse.Namespace, *, quick: int = 2) -> int:
    """Return how often each way has its turn."""
    return given.rounds or (quick if given.quick else given.full_rounds)


def slug(text: str) -> str:
    """Return a record's name made of words."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def range_of(values: Sequence[float], how: str) -> str:
    """Return the least and the largest of some values in words, each written as the format `how` says."""
    return " to ".join(dict.fromkeys(format(value, how) for value in (min(values), max(values))))


def save(given: argparse.Namespace, found: Iterable[Result]) -> None:
    """Print the records, and write them unless it was a quick look and nobody has said where to."""
    found = list(found)
    rows = []
    for result in found:
        spread = " to ".join(f"{value:.4g}" for value in result.quartiles or [])
        within = f" ({' to '.join(f'{value:.2f}' for value in result.ratio_interval)})" if result.ratio_interval else ""
        ratio = "" if result.ratio is None else f"{result.ratio:.2f} times {result.peer}{within}"
        settings = ", ".join(f"{name} {value}" for name, value in result.settings.items())
        rows.append((result.what, settings, f"{result.median:.4g} {result.unit}", spread, ratio, result.verdict))
    table(("", "settings", "median", "quartiles", "better than", "verdict"), rows)
    keep(given, found)


def keep(given: argparse.Namespace, found: Iterable[Result]) -> None:
    """Write the records, unless it was a quick look and nobody has said where to."""
    folder = given.out or (None if given.quick else RESULTS)
    if folder is not None:
        write(folder / f"{Path(sys.argv[0]).stem}.json", found)


def leave_group() -> None:
    """Destroy the process group, and wait until its threads have let go of the last tensors.

    A DistributedDataParallel that still lives holds the group: its threads may outlive the interpreter, which ends the
    process by SIGABRT.
    """
    import torch.distributed

    from unisono.system.leaving import await_gloo

    torch.distributed.destroy_process_group()
    await_gloo()


def join_world(workers: int, *, torchrun: bool = False) -> None:
    """Start this program on so many processes, unless a launcher has started it already.

    Ends with a message where the world has one process and the benchmark compares several.
    """
    size = next((os.environ[name] for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE") if name in os.environ), None)
    if size is None:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        if not torchrun:
            start = [*UNISONO, "run", "-n", str(workers), "--output", "leader"]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        os.execve(start[0], [*start, str(Path(sys.argv[0]).resolve()), *sys.argv[1:]], environment)
    if int(size) < 2 <= workers:
        script = f"benchmarks/{Path(sys.argv[0]).name}"
        stop(f"expected at least 2 processes, got 1. Hint: python {script} starts {workers} itself.")


def stop(message: str) -> NoReturn:
    """End with 2, as for wrong options."""
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(2)


def in_turn(ways: Mapping[str, Callable[[], T]], rounds: int, *, warm_up: int = 1) -> dict[str, list[T]]:
    """Call every way once a round, every other round backwards, and return what they gave, round by round."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for index in range(-warm_up, rounds):
        for name in ways if index % 2 == 0 else reversed(ways):
            given = ways[name]()
            if index >= 0:
                found[name].append(given)
    return found


def children_cpu_s() -> float:
    """Return the CPU seconds of all processes that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(command: Sequence[str | Path], **more) -> tuple[float, float, str]:
    """Run a program to its end, and return its seconds, the CPU seconds of its processes, and what it has printed.

    Ends with what the program has said where it fails.
    """
    before, began = children_cpu_s(), time.perf_counter()
    done = subprocess.run(command, check=False, **{"cwd": ROOT, "capture_output": True, "text": True, **more})
    wall, cpu = time.perf_counter() - began, children_cpu_s() - before
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nended with code {done.returncode}\n{(done.stderr or '')[-3000:]}")
    return wall, cpu, done.stdout or ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown, its columns aligned."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    for index, line in enumerate(lines):
        print("| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |")
        if index == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print(f"load of the machine: {os.getloadavg()[0]:.1f}", flush=True)


def make_reviews(folder: Path, count: int = 40) -> Path:
    """Write an ``aclImdb`` of invented reviews, so many of each kind, and return it: what quick looks read."""
    for split in ("train", "test"):
        for label, rating, last in (("neg", 2, "bad"), ("pos", 9, "good")):
            place = folder / "aclImdb" / split / label
            place.mkdir(parents=True)
            for number in range(count):
                (place / f"{number}_{rating}.txt").write_text("this film was " * (1 + number % 20) + last)
    return folder / "aclImdb"
