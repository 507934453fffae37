"""Tables and the picture of `time_to_accuracy`, from the lines it has left."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unisono.report.charts import Series
from unisono.report.content import Section, line_view
from unisono.report.picture import draw_section
from unisono.system.words import spell_seconds

BARS = {"system": {"imdb": 6.0, "mnist": 1.7}, "accuracy": {"imdb": 15.0, "mnist": 10.0}}
TARGETS = {"imdb": 0.85, "mnist": None}
"""Test accuracy; None: the median of the script's after its last epoch."""

Lines = list[dict[str, Any]]


def report(folder: Path, *, picture: Path | None = None) -> None:
    """Print a table for each file in `folder`; draw ``accuracy`` where a picture is wanted."""
    curves: dict[str, Lines] = {}
    for path in sorted(folder.glob("*.jsonl")):
        kind, job = path.stem.split("-")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        first, last = min(line["date"] for line in lines), max(line["date"] for line in lines)
        loads = [load for line in lines for load in line["load"]]
        limit = f", {lines[0]['limit']} training samples" if lines[0]["limit"] else ""
        print(f"\n{kind}, {job}{limit}: {first} to {last}, load {min(loads)} to {max(loads)}\n")
        {"system": system_table, "accuracy": accuracy_table, "seeds": seeds_table}[kind](job, lines)
        if kind == "accuracy":
            curves[job] = lines
    if picture is not None and curves:
        draw(curves, picture)
        print(f"\n{picture}")


def names_of(lines: Lines) -> list[str]:
    return list(dict.fromkeys(line["name"] for line in lines))


def system_table(job: str, lines: Lines) -> None:
    """Samples per second by the wall clock, and per CPU second of a process: on a busy machine the fairer number."""
    print("| | rounds | samples/s | least to most | against DDP | the same by CPU seconds |\n|---|---|---|---|---|---|")
    for name in names_of(lines):
        rates = [rate for _, rate in by_round(lines, name, "wall")]
        wall, cpu = (ratios(lines, name, clock) for clock in ("wall", "cpu"))
        print(f"| {name} | {len(rates)} | {statistics.median(rates):.0f} | {min(rates):.0f} to {max(rates):.0f} "
              f"| {middle(wall)} | {middle(cpu)} |")  # fmt: skip
    print(f"\nbar: {BARS['system'][job]} (medians of the ratios of one round each)")


def by_round(lines: Lines, name: str, clock: str) -> list[tuple[int, float]]:
    """Return (round, samples per second) of a contestant's last epochs."""
    found = []
    for line in lines:
        if line["name"] == name:
            epoch = line["epochs"][-1]
            num_samples = epoch["samples_per_s"] * epoch["train_s"]
            found.append((line["round"], num_samples / (epoch["train_s"] if clock == "wall" else epoch["cpu_s"] * 2)))
    return found


def ratios(lines: Lines, name: str, clock: str) -> list[float]:
    base = dict(by_round(lines, "DDP", clock))
    return [rate / base[index] for index, rate in by_round(lines, name, clock) if index in base]


def middle(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else "-"


def accuracy_table(job: str, lines: Lines) -> None:
    """Seconds to the target; where it is not reached, seconds trained in vain as a lower bound."""
    target = target_of(job, lines)
    if target is None:
        print("no run of DDP yet")
        return
    print(
        f"| to {target:.4f} | rounds | seconds | DDP's over these | epochs | best accuracy |\n|---|---|---|---|---|---|"
    )
    base = {line["round"]: seconds_to(line["epochs"], target) for line in lines if line["name"] == "DDP"}
    for name in names_of(lines):
        runs = [line for line in lines if line["name"] == name]
        times = {line["round"]: seconds_to(line["epochs"], target) for line in runs}
        factors = [(base[index][0] / seconds, base[index][1]) for index, (seconds, is_reached) in times.items()
                   if is_reached and index in base]  # fmt: skip
        shown = f"{statistics.median(seconds for seconds, _ in times.values()):.1f}"
        missed = sum(not is_reached for _, is_reached in times.values())
        shown = f"not in {shown} ({missed} of {len(runs)} runs)" if missed else shown
        bound = ">= " if any(not is_reached for _, is_reached in factors) else ""
        factor = f"{bound}{middle([factor for factor, _ in factors])}"
        best = max(epoch["accuracy"] for line in runs for epoch in line["epochs"])
        print(
            f"| {name} | {len(runs)} | {shown} | {factor} | {max(len(line['epochs']) for line in runs)} | {best:.4f} |"
        )
    print(f"\nbar: {BARS['accuracy'][job]} for unisono, fast")


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


def seeds_table(job: str, lines: Lines) -> None:
    """Test accuracy after each epoch: mean and spread over the seeds, and the same of each seed's best epoch."""
    num_epochs = min(len(line["epochs"]) for line in lines)
    head = " | ".join(f"epoch {number}" for number in range(1, num_epochs + 1))
    print(f"| | seeds | {head} | best epoch |\n|---|---|{'---|' * (num_epochs + 1)}")
    for name in names_of(lines):
        own = [line["epochs"][:num_epochs] for line in lines if line["name"] == name]
        curves = [[epoch["accuracy"] for epoch in epochs] for epochs in own]
        columns = [*zip(*curves, strict=True), [max(curve) for curve in curves]]
        print(f"| {name} | {len(curves)} | {' | '.join(map(mean_and_spread, columns))} |")
    print(f"\ntest accuracy of {job} in %, mean ± standard deviation (each seed), at equal settings")


def mean_and_spread(accuracies: Sequence[float]) -> str:
    """Return a table's cell, in %."""
    spread = f" ± {100 * statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    return f"{100 * statistics.mean(accuracies):.2f}{spread} ({', '.join(f'{100 * a:.2f}' for a in accuracies)})"


def draw(curves: dict[str, Lines], picture: Path) -> None:
    """Accuracy over seconds of training, one chart a job: the mean of the runs, bars from the worst to the best."""
    names = sorted({name for lines in curves.values() for name in names_of(lines)})  # one colour in all charts
    charts = []
    for job, lines in curves.items():
        series = []
        for name in names:
            runs = [line["epochs"] for line in lines if line["name"] == name]
            ends = range(min(map(len, runs), default=0))
            seconds = [statistics.mean(sum(one["train_s"] for one in run[: end + 1]) for run in runs) for end in ends]
            found = [[run[end]["accuracy"] for run in runs] for end in ends]
            points = list(zip(seconds, map(statistics.mean, found), strict=True))
            series.append(Series(name=name, points=points, spread=[(min(one), max(one)) for one in found]))
        target = target_of(job, lines)
        if target is not None:
            times = [x for line in series for x, _ in line.points]
            points = [(min(times), target), (max(times), target)]
            series.append(Series(name=f"{target:.2%}", points=points, is_limit=True))
        charts.append(
            line_view(job.upper(), series, "seconds of training, 2 processes", spell_seconds, "{:.1%}".format,
                      log_x=True, from_zero=False)
        )  # fmt: skip
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw_section(Section(title="Test accuracy over seconds of training", charts=charts), picture)
