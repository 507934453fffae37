"""Every benchmark one after the other, and docs/figures.md of what they have found.

    python benchmarks [--quick] [--again] [--only NAME,...] [--list]          # make bench, make bench QUICK=1

Whole it takes about three hours, ``--quick`` half an hour: full sizes, fewer rounds, and what is long is left out. What
has been measured on this very ``src`` is not measured again, without ``--again``: stopped at any moment and started
again, it goes on. What a benchmark prints stays in ``build/bench/NAME.log``. At the end all figures are shown, also
those that are older.

Exit code: 0, also where a bar is missed; 1 where a benchmark has failed; 2 for wrong options.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import figures
from catalogue import BUILD, HERE, TABLE, Benchmark
from origin import ROOT, is_same_source
from results import RESULTS, Result, ResultError, read
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unisono.system.processes import die_with_parent

LAST_LINES = 12


def arguments(words: Sequence[str] | None, table: Sequence[Benchmark]) -> argparse.Namespace:
    """Return the options; ends with 2 and one line where a name is unknown."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer rounds; what is long is left out")
    parser.add_argument("--again", action="store_true", help="measure anew what is there of this src")
    parser.add_argument("--only", metavar="NAME,...", help="these benchmarks (--list names them)")
    parser.add_argument("--list", action="store_true", help="what there is, what it needs, what is done")
    parser.add_argument("--results", type=Path, default=RESULTS, help=argparse.SUPPRESS)
    parser.add_argument("--page", type=Path, default=figures.PAGE, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    names = [entry.name for entry in table]
    given.names = None if given.only is None else [name.strip() for name in given.only.split(",")]
    if odd := [name for name in given.names or [] if name not in names]:
        said = f"expected --only to name benchmarks, got {', '.join(map(repr, odd))}. Hint: --list names them"
        print(f"bench: {said}", file=sys.stderr)
        sys.exit(2)
    return given


def chosen(given: argparse.Namespace, table: Sequence[Benchmark]) -> list[Benchmark]:
    """Return what this call is about."""
    if given.names is not None:
        return [entry for entry in table if entry.name in given.names]
    return [entry for entry in table if not entry.by_name and not (given.quick and entry.quick is None)]


def is_finished(entry: Benchmark, folder: Path, *, is_quick: bool) -> bool:
    """Whether its records are of this very ``src`` and this very program, whatever has been committed since.

    A record of a tree with changes ("+") never counts. For the short run, records of the whole one do.
    """
    path = folder / f"{Path(entry.script).stem}.json"
    if entry.resumes or not path.exists():
        return False
    said = {entry.said(), *([entry.said(is_quick=True)] if is_quick and entry.quick is not None else [])}
    mine = {result.commit for result in read(path) if result.source is None and result.command in said}
    return any(commit and is_same_source(commit, HERE / entry.script) for commit in mine)


def play(entry: Benchmark, given: argparse.Namespace) -> list[str]:
    """Run one benchmark; returns the last lines of one that has failed, nothing of one that has not."""
    BUILD.mkdir(parents=True, exist_ok=True)
    is_quick = given.quick and entry.quick is not None
    command = [*entry.command(is_quick=is_quick), "--out", str(given.results)]
    limit_s = 60 * max(10, 4 * entry.minutes)  # one that hangs does not keep the others
    log = BUILD / f"{entry.name}.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                   start_new_session=True, preexec_fn=die_with_parent)  # noqa: PLW1509 - no threads here # fmt: skip
        try:
            code: int | str = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = f"nothing after {limit_s / 60:.0f} minutes"
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it has left, however it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code == 0:
        return []
    return [f"{' '.join(command)}: ended with {code}", *log.read_text(errors="replace").splitlines()[-LAST_LINES:]]


def show(folder: Path, console: Console) -> None:
    """Print every figure: a table on a terminal, else a line each."""
    found = [result for path in sorted(folder.glob("*.json")) for result in read(path)]
    found.sort(key=lambda result: result.topic)
    if not console.is_terminal:
        for result in found:
            parts = (result.topic, result.what + settings(result), figures.figure(result), figures.peer(result),
                     figures.bar(result), figures.verdict(result), figures.taken(result))  # fmt: skip
            print(" | ".join(part.replace("**", "") for part in parts))
        return
    table = Table(width=min(console.width, 80), pad_edge=False, padding=(0, 1, 0, 0))
    for name, share in (("figure", 8), ("value", 4), ("times peer", 5), ("bar", 3), ("verdict", 3)):
        table.add_column(name, ratio=share, overflow="fold")
    topic = ""
    for result in found:
        if result.topic != topic:
            topic = result.topic
            table.add_section()
            table.add_row(Text(topic, "bold"))
        cells = (result.what + settings(result), figures.figure(result), times(result), bar(result))
        style = {"met": "green", "missed": "red"}.get(result.verdict, "")
        table.add_row(*map(Text, cells), Text(figures.verdict(result), style))
    console.print(table)


def settings(result: Result) -> str:
    """Return what else decides the figure."""
    said = ", ".join(f"{name} {value}" for name, value in result.settings.items())
    return f" ({said})" if said else ""


def times(result: Result) -> str:
    """Return the ratio, its interval and the peer, in few letters."""
    ratio = "" if result.ratio is None else f"{result.ratio:.3g}{figures.interval(result)} "
    return f"{ratio}{result.peer or ''}"


def bar(result: Result) -> str:
    """Return the bar, in few letters."""
    if result.bar is None:
        return ""
    sign, value = (">=", result.bar.at_least) if result.bar.at_least is not None else ("<=", result.bar.at_most)
    return f"{sign} {figures.number(value)}{' x' if result.bar.of == 'ratio' else ''}"


def print_list(given: argparse.Namespace, table: Sequence[Benchmark]) -> None:
    """Print what there is."""
    for entry in table:
        is_quick = given.quick and entry.quick is not None
        state = "done" if is_finished(entry, given.results, is_quick=given.quick) else entry.lacks() or "to do"
        long = ", by name only" if entry.by_name else ", not in --quick" if entry.quick is None else ""
        minutes = entry.quick_minutes if is_quick else entry.minutes
        print(f"{entry.name:20} {minutes:4g} min  {state}{long}")


def main(words: Sequence[str] | None = None, table: Sequence[Benchmark] = TABLE) -> int:
    """Run what is missing, rewrite the page after each, and show everything."""
    given = arguments(words, table)
    given.results = given.results.resolve()
    if given.list:
        print_list(given, table)
        return 0
    console, failed = Console(), {}
    todo = chosen(given, table)
    for number, entry in enumerate(todo, 1):
        head = f"[{number}/{len(todo)}] {entry.name}"
        if why := entry.lacks():
            print(f"{head}: left out, {why}", flush=True)
            continue
        if not given.again and is_finished(entry, given.results, is_quick=given.quick):
            print(f"{head}: is there already, of this src", flush=True)
            continue
        minutes = entry.quick_minutes if given.quick and entry.quick is not None else entry.minutes
        print(f"{head}: about {minutes:g} min", flush=True)
        began = time.monotonic()
        last = play(entry, given)
        print(f"{head}: {'FAILED' if last else 'done'} after {time.monotonic() - began:.0f} s", flush=True)
        if last:
            failed[entry.name] = last
            print("\n".join(last), flush=True)
        given.page.write_text(figures.page_of(given.results))
    given.page.write_text(figures.page_of(given.results))
    show(given.results, console)
    for name, last in failed.items():
        print(f"FAILED: {name}: {last[-1]}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        code = main()
    except ResultError as error:
        print(f"bench: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
