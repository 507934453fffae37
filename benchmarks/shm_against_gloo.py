"""Everything this project claims of shared memory against gloo, measured in one go, in one table.

    python benchmarks/shm_against_gloo.py [--quick]

About five minutes on a machine with nothing else to do; on a busy one the numbers say more about the other work. Each
line is one claim: the ratio of medians that were taken turn by turn in one run, and the bar it should reach.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RUN = [sys.executable, "-m", "unisono", "run", "-n", "2", "--output", "leader"]


def main() -> None:
    """Measure, and print the table."""
    quick = "--quick" in sys.argv
    print(f"load before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    rows = []
    for name, measured, bar in claims(quick):
        rows.append((name, measured, bar))
        print(f"  {name}: {measured}", file=sys.stderr, flush=True)
    print(f"load after: {os.getloadavg()[0]:.2f}\n")
    print(f"{'claim':<58} {'measured':>30}   bar")
    for name, measured, bar in rows:
        print(f"{name:<58} {measured:>30}   {bar}")


def claims(quick: bool) -> Iterator[tuple[str, str, str]]:
    """Yield what is claimed, what was measured, and the bar."""
    which = ["-c", "all_reduce,tree_all_reduce", "--repeat"]
    rows = bench(["-r", "2", "-s", "4KB,4MB,64MB", *which, "9" if quick else "31"])
    for size, bar in ((4 << 10, 10), (4 << 20, 4), (64 << 20, 3)):
        for collective in ("tree_all_reduce", "all_reduce"):
            shm_s, gloo_s = medians(rows, collective, "shm")[size], medians(rows, "all_reduce", "gloo")[size]
            times = f"{shm_s * 1e3:.3f} ms, {gloo_s / shm_s:.1f} times"
            yield f"2 ranks, {collective}, {size >> 10} KB, faster than gloo", times, f"{bar} times"
    sizes = "1KB,64KB,1MB,16MB" if quick else "1KB,4KB,16KB,64KB,256KB,1MB,4MB,16MB,64MB,256MB"
    rows = bench(["-r", "4", "-s", sizes, *which, "5" if quick else "9"])
    for collective in ("tree_all_reduce", "all_reduce"):
        shm, gloo = medians(rows, collective, "shm"), medians(rows, "all_reduce", "gloo")
        ratios = {size: gloo[size] / shm[size] for size in shm}
        worst = min(ratios, key=lambda size: ratios[size])
        slowest = f"{ratios[worst]:.2f} times at {worst >> 10} KB"
        yield f"4 ranks on 2 cores, {collective}, faster than gloo, least", slowest, "1 time at every size"
    told = json.loads(output([*RUN, "benchmarks/ddp_over_shm.py", "--json"]).splitlines()[-1])
    same = "same weights" if told["same"] else "OTHER WEIGHTS"
    yield "DDP step, 1 M parameters, faster over shm than over gloo", f"{told['ratio']:.2f} times, {same}", "1.3 times"
    for line in output([*RUN, "benchmarks/exact_vs_ddp.py"]).splitlines()[1:]:
        model, *_, ratio = re.split(r"\s{2,}", line.strip())
        yield f"exact step against DDP with gloo, {model}", f"{ratio} times", "1 time"
    losses = [json.loads(line) for line in output(
        [sys.executable, "tests/collectives/lost_ranks.py", "10" if quick else "50", "9", "60", "1"]
    ).splitlines()]  # fmt: skip
    delays = sorted(report["after_s"] for loss in losses[:-1] for report in loss["reports"])
    named = all(
        f"rank {loss['victims'][0]} (process " in report["error"] and "has died" in report["error"]
        for loss in losses[:-1]
        for report in loss["reports"]
    )
    seen = f"median {delays[len(delays) // 2] * 1e3:.0f} ms, longest {delays[-1] * 1e3:.0f} ms"
    yield f"{len(losses) - 1} kills of one of 4 ranks, named by all: {named}", seen, "100 ms"


def bench(options: list[str]) -> list[dict[str, Any]]:
    """Return the rows of ``unisono bench collectives``."""
    told = json.loads(output([sys.executable, "-m", "unisono", "bench", "collectives", "--json", *options]))
    rows: list[dict[str, Any]] = told["rows"]
    return rows


def medians(rows: list[dict[str, Any]], collective: str, transport: str) -> dict[int, float]:
    """Return the median seconds of a collective by buffer size."""
    return {r["bytes"]: r["median_s"] for r in rows if (r["collective"], r["transport"]) == (collective, transport)}


def output(command: list[str]) -> str:
    """Run a command to its end and return what it prints."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    main()
