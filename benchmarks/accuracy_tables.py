"""Records and picture of `time_to_accuracy`, from the lines it has left."""

import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import range_of, slug
from results import Bar, Result

from unisono.report.content import Section, bar_view
from unisono.report.picture import draw_section

TOPIC = "Real data beside other programs"
BARS = {
    "system": {"imdb": 10.0, "mnist": 2.0},
    "accuracy": {"imdb": 20.0, "mnist": 15.0},
    "best": {"imdb": 88.0, "mnist": 99.4},
}
TARGETS = {"imdb": 0.85, "mnist": None}
"""Test accuracy; None: the median of the script's after its last epoch."""

Lines = list[dict[str, Any]]


def report(folder: Path) -> list[Result]:
    """Return the records of all files in `folder`."""
    found: list[Result] = []
    for path in sorted(folder.glob("*.jsonl")):
        kind, job = path.stem.split("-")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found += {"system": system_records, "accuracy": accuracy_records, "seeds": seeds_records}[kind](job, lines)
    return found


def record(kind: str, job: str, name: str, lines: Lines, samples: list[float], **more: Any) -> Result:
    """Return a record; what is common to all kinds is said here."""
    loads = [load for line in lines for load in line["load"]]
    limit = lines[0]["limit"]
    settings = {"processes": 2, "limit": limit or "none", **more.pop("settings", {})}
    made = Result.of(
        slug(f"{kind} {job} {name}"), samples, topic=TOPIC, settings=settings, **more,
        command=f"python benchmarks/time_to_accuracy.py {kind} --job {job} --data DATA"
        + (f" --limit {limit}" if limit else ""),
    )  # fmt: skip
    return replace(made, date=lines[-1]["date"][:10], load=[min(loads), max(loads)])


def system_records(job: str, lines: Lines) -> list[Result]:
    """Return how much faster everybody is than DDP, in the rounds that both have: by the wall clock and by CPU time."""
    found = []
    for name, clock in itertools.product(names_of(lines), ("wall", "cpu")):
        base = dict(by_round(lines, "DDP", clock))
        pairs = [(rate, base[index]) for index, rate in by_round(lines, name, clock) if index in base]
        if name != "DDP" and pairs:
            is_claim = name == "unisono, 2 replicas" and clock == "wall"
            found.append(record(
                "system", job, name if clock == "wall" else f"{name} {clock}", lines, [ours for ours, _ in pairs],
                against=[theirs for _, theirs in pairs], peer="DDP over gloo", less_is_better=False,
                unit="samples/s" if clock == "wall" else "samples per CPU second",
                bar=Bar(of="ratio", at_least=BARS["system"][job]) if is_claim else None,
                what=f"{job.upper()}, {name}, equal settings",
            ))  # fmt: skip
    return found


def accuracy_records(job: str, lines: Lines) -> list[Result]:
    """Return seconds to the target, where all runs reach it, and the best accuracy of ``best``."""
    target, found = target_of(job, lines), []
    reached = {
        name: {line["round"]: seconds_to(line["epochs"], target) for line in lines if line["name"] == name}
        for name in names_of(lines) if target is not None
    }  # fmt: skip
    base = reached.get("DDP", {})
    for name, times in reached.items():
        rounds = [index for index in times if index in base]
        if missed := [seconds for seconds, is_reached in times.values() if not is_reached]:
            print(f"{job}, {name}: {target:.4f} not reached in {len(missed)} of {len(times)} runs, {min(missed):.1f} s")
        elif name != "DDP" and rounds:
            bound = "" if all(base[index][1] for index in rounds) else "DDP did not reach it: at least so many times"
            found.append(record(
                "accuracy", job, name, lines, [times[index][0] for index in rounds], unit="s", peer="DDP over gloo",
                against=[base[index][0] for index in rounds], note=bound,
                bar=Bar(of="ratio", at_least=BARS["accuracy"][job]) if name == "unisono, fast" else None,
                what=f"{job.upper()}, {name}: training to {100 * target:.2f} %",
            ))  # fmt: skip
    if best := best_of(lines, "unisono, best"):
        what = f"{job.upper()}, unisono, best: test accuracy of the best epoch"
        bar = Bar(at_least=BARS["best"][job])
        found.append(record("accuracy", job, "best accuracy", lines, best, unit="%", bar=bar, what=what))
    return found


def seeds_records(job: str, lines: Lines) -> list[Result]:
    """Return the test accuracy of each seed's best epoch."""
    what = "equal settings: test accuracy of each seed's best epoch"
    return [
        record("seeds", job, name, lines, best_of(lines, name), unit="%", what=f"{job.upper()}, {name}, {what}")
        for name in names_of(lines)
    ]


def best_of(lines: Lines, name: str) -> list[float]:
    """Return the best test accuracy of each run, in %."""
    return [100 * max(epoch["accuracy"] for epoch in line["epochs"]) for line in lines if line["name"] == name]


def names_of(lines: Lines) -> list[str]:
    return list(dict.fromkeys(line["name"] for line in lines))


def by_round(lines: Lines, name: str, clock: str) -> list[tuple[int, float]]:
    """Return (round, samples per second) of a contestant's last epochs."""
    found = []
    for line in lines:
        if line["name"] == name:
            epoch = line["epochs"][-1]
            num_samples = epoch["samples_per_s"] * epoch["train_s"]
            found.append((line["round"], num_samples / (epoch["train_s"] if clock == "wall" else epoch["cpu_s"] * 2)))
    return found


def target_of(job: str, lines: Lines) -> float | None:
    given = TARGETS[job]
    ends = [line["epochs"][-1]["accuracy"] for line in lines if line["name"] == "DDP"]
    return given if given is not None or not ends else statistics.median(ends)


def seconds_to(epochs: Lines, target: float) -> tuple[float, bool]:
    """Return the seconds of training until the first epoch that ends at the target, and whether one does."""
    total = 0.0
    for epoch in epochs:
        total += epoch["train_s"]
        if epoch["accuracy"] >= target:
            return total, True
    return total, False


def draw(records: Sequence[Result], picture: Path) -> None:
    """Draw the seconds of training to the target accuracy, of ``fast`` and of DDP in the same rounds."""
    rows = [row for row in records if row.name.endswith("unisono-fast") and row.peer_median and row.median]
    bars, ratios = dict[str, dict[str, float]](), []
    for row in rows:
        job, target = row.what.partition(",")[0], row.what.rpartition(" to ")[2]
        ours, theirs = "our recipe, unisono", "tutorial recipe, DDP"
        bars |= {f"{job} tutorial": {ours: 0.0, theirs: float(row.peer_median or 0)},
                 f"{job} ours": {ours: float(row.median or 0), theirs: 0.0}}  # fmt: skip
        ratios.append(f"{job} {row.ratio:.0f} times as fast to {target}")
    where = f"{rows[0].settings['processes']} processes on {rows[0].machine.partition(',')[0]}"
    lines = [f"{where}, median of {len(rows[0].samples)} rounds, {rows[0].date}."]
    chart = bar_view("Seconds of training", bars, "job", "{:.0f} s".format, finding="; ".join(ratios) + ".")
    lines.append("Two recipes: the tutorial's, several epochs; ours (preset fast), one epoch.")
    times = range_of([row.ratio or 0 for row in rows], ".0f")
    title = f"A better recipe: the tutorial with DDP takes {times} times as long"
    draw_section(Section(title=title, lines=lines, charts=[chart]), picture)
