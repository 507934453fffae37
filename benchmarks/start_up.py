"""How long a newcomer waits before anything happens: importing, and answers of the command line.

Each round runs every command once, in turn; what is compared is the median over the rounds, and the differences of the
same round. Wall time of a process of its own, and its CPU time.

    python benchmarks/start_up.py [ROUNDS]
"""

import os
import resource
import statistics
import subprocess
import sys
import time

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
    """Return wall and CPU seconds of a case."""
    env = {**os.environ, **(ASKING if name == "one completion" else {})}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    # python -m puts the directory first on the path: not this one, whose files are named like others.
    subprocess.run([sys.executable, *CASES[name]], env=env, stdout=subprocess.DEVNULL, check=True, cwd="/")
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for name in CASES:
        once(name)  # files into the cache
    for _ in range(rounds):
        for name, found in seen.items():
            found.append(once(name))
    print(f"load {os.getloadavg()[0]:.1f}, {rounds} rounds, ms")
    print(f"{'':<24} {'wall':>7} {'least':>7} {'CPU':>7}")
    for name, found in seen.items():
        wall, cpu = ([1e3 * seconds for seconds in column] for column in zip(*found, strict=True))
        print(f"{name:<24} {statistics.median(wall):7.0f} {min(wall):7.0f} {statistics.median(cpu):7.0f}")
    over = [
        (b[1] - a[1]) * 1e3 for a, b in zip(seen["import torch"], seen["import torch, unisono"], strict=True)
    ]  # fmt: skip
    print(f"unisono over torch, CPU of the same round: {statistics.median(over):.0f} ms")


if __name__ == "__main__":
    main()
