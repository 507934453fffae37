"""The sweep as a command: ``python -m adversary --cases N --seed S``; interrupted, the same command goes on."""

import argparse
import sys
from pathlib import Path

from adversary.damages import forget
from adversary.sweep import KINDS, QUICK, summary, sweep


def main() -> int:
    """Try cases; return 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m adversary")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1, help="draws other cases")
    parser.add_argument("--kinds", default="all", help="only these, with commas; quick: all but kills")
    parser.add_argument("--log", type=Path, default=Path("build/adversary.jsonl"))
    given = parser.parse_args()
    given.log.parent.mkdir(parents=True, exist_ok=True)
    kinds = {"all": [*KINDS], "quick": [*QUICK]}.get(given.kinds) or given.kinds.split(",")
    is_found = False
    numbers = range(given.first, given.first + given.cases)
    for tried in sweep(given.seed, numbers, given.log, kinds):
        if tried["outcome"] == "found":
            is_found = True
            print(f"case {tried['number']} ({tried['kind']}): {tried['words']}", flush=True)
        elif tried["number"] % 100 == 0:
            print(f"{tried['number']} of {given.cases}", flush=True)
    forget()
    print(summary(given.log))
    return int(is_found)


if __name__ == "__main__":
    sys.exit(main())
