"""Our collectives over shared memory against gloo's, and how soon all name a rank that was killed.

    python benchmarks/shm_against_gloo.py [--quick] [--out DIR]

About three minutes on a machine with nothing else to do; on a busy one the numbers say more about the other work. What
is compared was taken turn by turn in one run of `unisono bench collectives`. DDP over the backend is in
`ddp_over_shm.py`, the exact step in `exact_vs_ddp.py`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from harness import UNISONO, parser_of, run, save, slug
from results import Bar, Result

REDUCTIONS = ("tree_all_reduce", "all_reduce")
BARS = {"4KB": 10.0, "4MB": 4.0, "64MB": 3.0}
CROWDED = ["1KB", "4KB", "16KB", "64KB", "256KB", "1MB", "4MB", "16MB", "64MB", "256MB"]
OTHERS = ("broadcast", "scatter", "gather", "all_to_all", "send_recv", "reduce_scatter", "all_gather")
Row = dict[str, Any]


def main() -> None:
    """Measure, print and write."""
    given = parser_of(__doc__).parse_args()
    bars = {"4KB": BARS["4KB"]} if given.quick else BARS
    rows = bench(2, REDUCTIONS, list(bars), 3 if given.quick else 31)
    found = [one for name in REDUCTIONS for one in against_gloo(rows, 2, name, "all_reduce", bars)]
    if not given.quick:
        rows = bench(4, REDUCTIONS, CROWDED, 9)
        found += [least(rows, 4, name) for name in REDUCTIONS]
        bars = dict.fromkeys(["4KB", "1MB", "16MB"])
        rows = bench(4, OTHERS, list(bars), 7)
        found += [one for name in OTHERS for one in against_gloo(rows, 4, name, name, bars)]
    save(given, [*found, *kills(2 if given.quick else 50)])


def bench(ranks: int, collectives: Sequence[str], sizes: Sequence[str], repeat: int) -> list[Row]:
    """Return the rows of ``unisono bench collectives``."""
    options = ["-r", str(ranks), "-s", ",".join(sizes), "-c", ",".join(collectives), "--repeat", str(repeat)]
    rows: list[Row] = json.loads(run([*UNISONO, "bench", "collectives", "--json", *options])[2])["rows"]
    return rows


def medians(rows: list[Row], collective: str, transport: str) -> dict[int, float]:
    """Return the median milliseconds of a collective by buffer size."""
    mine = [row for row in rows if (row["collective"], row["transport"]) == (collective, transport)]
    return {row["bytes"]: 1e3 * row["median_s"] for row in sorted(mine, key=lambda row: row["bytes"])}


def against_gloo(rows: list[Row], ranks: int, name: str, theirs: str, bars: Mapping[str, float | None]) -> list[Result]:
    """Return a record for each size, beside gloo's `theirs`."""
    shm, gloo = medians(rows, name, "shm"), medians(rows, theirs, "gloo")
    return [
        Result.of(
            slug(f"{name} {label}"), [shm[size]], against=[gloo[size]], peer=f"gloo's {theirs}", unit="ms",
            topic="Collectives", what=f"{name} of {label}", bar=bar and Bar(of="ratio", at_least=bar),
            settings={"ranks": ranks},
        )
        for size, (label, bar) in zip(shm, bars.items(), strict=True)
    ]  # fmt: skip


def least(rows: list[Row], ranks: int, name: str) -> Result:
    """Return the record of the size at which the ratio is least."""
    shm, gloo = medians(rows, name, "shm"), medians(rows, "all_reduce", "gloo")
    size = min(shm, key=lambda size: gloo[size] / shm[size])
    return Result.of(
        slug(f"{name} {ranks} ranks"),
        [shm[size]],
        against=[gloo[size]],
        peer="gloo's all_reduce",
        unit="ms",
        topic="Collectives",
        what=f"{name}, the size of the least ratio",
        bar=Bar(of="ratio", at_least=1),
        settings={"ranks": ranks, "KB": size >> 10},
    )


def kills(count: int) -> list[Result]:
    """Kill one of four ranks, again and again; all others have to name it."""
    told = run([sys.executable, "tests/collectives/lost_ranks.py", str(count), "9", "60", "1"])[2]
    losses = [json.loads(line) for line in told.splitlines()][:-1]
    reports = [(loss, report) for loss in losses for report in loss["reports"]]
    unnamed = sum(f"rank {loss['victims'][0]} (process " not in report["error"] or "has died" not in report["error"]
                  for loss, report in reports)  # fmt: skip
    common = {"topic": "Faults and recovery", "settings": {"ranks": 4, "kills": count}}
    return [
        Result.of(
            "kill-named",
            [1e3 * max(report["after_s"] for report in loss["reports"]) for loss in losses],
            unit="ms",
            what="from SIGKILL of a rank in an all-reduce until all others have named it",
            **common,
        ),
        Result.of(
            "kill-longest",
            [1e3 * max(report["after_s"] for _, report in reports)],
            unit="ms",
            bar=Bar(at_most=100),
            what="the longest of these",
            **common,
        ),
        Result.of(
            "kill-unnamed",
            [unnamed],
            unit="ranks",
            bar=Bar(at_most=0),
            what="ranks that named another one or none",
            **common,
        ),
    ]


if __name__ == "__main__":
    main()
