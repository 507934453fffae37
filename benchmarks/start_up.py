"""How long a newcomer waits before anything happens: importing, and answers of the command line.

    python benchmarks/start_up.py [--rounds 11] [--quick] [--out DIR]

Each round runs every command once, in turn. Wall time of a process of its own, and its CPU time. Bytecode is there, as
an installation leaves it: the round before the first writes it.
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


INSIDE = "Run, Trainer after import torch"
"""Taken inside the process: two whole processes differ by more than this for other reasons."""
LOAD = """
import time, torch
wall, cpu = time.perf_counter(), time.process_time()
from unisono import Run, Trainer
print(1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu))
"""


def once(name: str) -> tuple[float, float]:
    """Return wall and CPU milliseconds of a case."""
    env = {**os.environ, **(ASKING if name == "one completion" else {})}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    # python -m puts the directory first on the path: not this one, whose files are named like others.
    wall, cpu, told = run([sys.executable, *(["-c", LOAD] if name == INSIDE else CASES[name])], env=env, cwd="/")
    if name == INSIDE:
        inside_wall, inside_cpu = map(float, told.split())
        return inside_wall, inside_cpu
    return 1e3 * wall, 1e3 * cpu


def main() -> None:
    """Measure and print."""
    given = parser_of(__doc__, rounds=11).parse_args()
    times = in_turn(
        {name: partial(once, name) for name in [*CASES, INSIDE]},
        rounds_of(given, quick=1),
        warm_up=int(not given.quick),
    )
    found = []
    for name in CASES:
        taken = times[name]
        bar = Bar(at_most=150) if name == "unisono --help" else None
        for clock, samples in zip(("wall", "cpu"), zip(*taken, strict=True), strict=True):
            found.append(Result.of(slug(f"{name} {clock}"), samples, what=name, unit="ms", topic="Start and data",
                                   settings={"clock": clock}, bar=bar if clock == "wall" else None))  # fmt: skip
    for clock, samples in zip(("wall", "cpu"), zip(*times[INSIDE], strict=True), strict=True):
        found.append(Result.of("over-torch" if clock == "cpu" else "over-torch-wall", samples, what=INSIDE, unit="ms",
                               topic="Start and data", settings={"clock": clock}, bar=Bar(at_most=80)))  # fmt: skip
    save(given, found)


if __name__ == "__main__":
    main()
