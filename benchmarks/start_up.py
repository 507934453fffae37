"""How long a newcomer waits before anything happens: importing, and answers of the command line.

    python benchmarks/start_up.py [--rounds 11] [--quick] [--out DIR]

Each round runs every command once, in turn. Wall time of a process of its own, and its CPU time.
"""

import os
import sys
from functools import partial

from harness import in_turn, parser_of, rounds_of, run, save, slug
from results import Bar, Result

CASES = {
    "python": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import torch, unisono": ["-c", "import torch, unisono"],
    "import unisono": ["-c", "import unisono"],
    "all public names": ["-c", "from unisono import *"],
    "unisono": ["-m", "unisono"],
    "unisono --help": ["-m", "unisono", "--help"],
    "unisono train --help": ["-m", "unisono", "train", "--help"],
    "one completion": ["-m", "unisono"],
}
ASKING = {"_UNISONO_COMPLETE": "bash_complete", "COMP_WORDS": "unisono train di", "COMP_CWORD": "2"}


def once(name: str) -> tuple[float, float]:
    """Return wall and CPU milliseconds of a case."""
    env = {**os.environ, **(ASKING if name == "one completion" else {})}
    # python -m puts the directory first on the path: not this one, whose files are named like others.
    wall, cpu, _ = run([sys.executable, *CASES[name]], env=env, cwd="/")
    return 1e3 * wall, 1e3 * cpu


def main() -> None:
    """Measure and print."""
    given = parser_of(__doc__, rounds=11).parse_args()
    times = in_turn(
        {name: partial(once, name) for name in CASES}, rounds_of(given, quick=1), warm_up=int(not given.quick)
    )
    found = []
    for name, taken in times.items():
        bar = Bar(at_most=150) if name == "unisono --help" else None
        for clock, samples in zip(("wall", "cpu"), zip(*taken, strict=True), strict=True):
            found.append(Result.of(slug(f"{name} {clock}"), samples, what=name, unit="ms", topic="Start and data",
                                   settings={"clock": clock}, bar=bar if clock == "wall" else None))  # fmt: skip
    over = [
        ours[1] - theirs[1] for ours, theirs in zip(times["import torch, unisono"], times["import torch"], strict=True)
    ]
    found.append(
        Result.of(
            "over-torch",
            over,
            what="import unisono over import torch",
            unit="ms",
            topic="Start and data",
            settings={"clock": "cpu"},
        )
    )
    save(given, found)


if __name__ == "__main__":
    main()
