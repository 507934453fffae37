"""The comparison as a command: ``python -m same_bits --base COMMIT`` in ``tests``; exit code 0 where all is equal."""

import argparse
import contextlib
import itertools
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from same_bits.contest import Verdict, at_hand, chosen, play
from same_bits.jobs import JOBS
from same_bits.material import prepare, real_data
from same_bits.trees import base_tree, present_tree

WIDTH = 130
SHOWN = 3
"""Fingerprints of a job in the table."""


def main() -> int:
    """Train and compare; 1 where anything differs or has failed, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m same_bits", description=__doc__, epilog=f"Jobs: {', '.join(JOBS)}")
    parser.add_argument("--base", required=True, metavar="COMMIT", help="trained first, from a checkout of its own")
    parser.add_argument("--jobs", default="", metavar="NAME,...", help="only these")
    parser.add_argument("--data", metavar="DIR", help="holds mnist/ and imdb/; else UNISONO_TEST_DATA, ../shared/data")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep run directories and output here")
    parser.add_argument(
        "--plant", action="store_true", help="a control: flip one bit after step 3 in the present tree; must fail"
    )
    given = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True, width=WIDTH)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of every `finally`: the checkout goes
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="same-bits-")))
        folder = given.keep.resolve() if given.keep else scratch / "jobs"
        try:
            jobs = chosen([name for name in given.jobs.split(",") if name])
            if folder.exists() and any(folder.iterdir()):
                raise ValueError(f"{folder} is not empty: runs there would be gone on with. Hint: another --keep.")
            if given.plant and not all(job.is_script for job in jobs.values()):
                raise ValueError(f"--plant goes into these jobs: {', '.join(_plantable())}. Hint: --jobs.")
            trees = stack.enter_context(base_tree(given.base, scratch / "base")), present_tree()
            paths, said = prepare(folder / "data", real_data(given.data))
        except ValueError as error:
            parser.error(str(error))
        for line in (*(f"{tree.name}: {tree.words}" for tree in trees), *said):
            console.print(line, markup=False)
        verdicts = []
        for name, job in jobs.items():
            verdict = play(name, at_hand(job, paths), trees, folder, paths, "present" if given.plant else "")
            verdicts.append(verdict)
            Console(stderr=True).print(f"{len(verdicts)}/{len(jobs)} {name}: {_word(verdict)}", markup=False)
    report(console, verdicts)
    if any(verdict.failures for verdict in verdicts) and not given.keep:
        console.print("Hint: --keep DIR keeps the output of every process.")
    is_equal = all(verdict.is_equal for verdict in verdicts)
    console.print(f"{'equal' if is_equal else 'DIFFERENT'} ({len(verdicts)} jobs, {time.monotonic() - began:.0f} s)")
    return int(not is_equal)


def report(console: Console, verdicts: list[Verdict]) -> None:
    """Print the table, and below it what was wrong: of each run the first step and field, then what followed."""
    table = Table(box=None, pad_edge=False)
    for title in ("job", "", "steps", "base", "present", "seconds"):
        table.add_column(title, justify="right" if title in ("steps", "seconds") else "left", no_wrap=True)
    for verdict in verdicts:
        hashes = [_short(side) for side in verdict.fingerprints]
        same = verdict.fingerprints[0] == verdict.fingerprints[1]
        table.add_row(
            verdict.name, _word(verdict), "/".join(map(str, sorted(set(verdict.steps)))), hashes[0],
            "same" if same else hashes[1], " + ".join(f"{seconds:.1f}" for seconds in verdict.seconds),
        )  # fmt: skip
    console.print(table)
    for verdict in verdicts:
        for failure in verdict.failures:
            console.print(f"{verdict.name}: {failure}", markup=False)
        for _, found in itertools.groupby(verdict.differences, key=lambda difference: difference.run):
            first, *others = found
            more = f"; then {', '.join(difference.field for difference in others[:4])}" if others else ""
            console.print(f"{verdict.name}: {first}{more}{', ...' if others[4:] else ''}", markup=False)


def _short(fingerprints: list[str]) -> str:
    more = len(fingerprints) - SHOWN
    return " ".join([mark[:8] for mark in fingerprints[:SHOWN]] + ([f"+{more}"] if more > 0 else []))


def _word(verdict: Verdict) -> str:
    return "equal" if verdict.is_equal else "FAILED" if verdict.failures else "DIFFERENT"


def _plantable() -> list[str]:
    return [name for name, job in JOBS.items() if job.is_script]


if __name__ == "__main__":
    sys.exit(main())
