"""Tables, records and the picture of `time_to_accuracy`, from the lines it has left."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import slug
from results import Bar, Result

TOPIC = "Real data beside other programs"
BARS = {
    "system": {"imdb": 6.0, "mnist": 1.7},
    "accuracy": {"imdb": 15.0, "mnist": 10.0},
    "best": {"imdb": 88.0, "mnist": 99.4},
}
TARGETS = {"imdb": 0.85, "mnist": None}
"""Test accuracy; None: the median of the script's after its last epoch."""

Lines = list[dict[str, Any]]


def report(folder: Path, *, picture: Path | None = None) -> list[Result]:
    """Print a table for each file in `folder` and return its records; draw ``accuracy`` where a picture is wanted."""
    found: list[Result] = []
    curves: dict[str, Lines] = {}
    for path in sorted(folder.glob("*.jsonl")):
        kind, job = path.stem.split("-")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        first, last = min(line["date"] for line in lines), max(line["date"] for line in lines)
        loads = [load for line in lines for load in line["load"]]
        limit = f", {lines[0]['limit']} training samples" if lines[0]["limit"] else ""
        print(f"\n{kind}, {job}{limit}: {first} to {last}, load {min(loads)} to {max(loads)}\n")
        {"system": system_table, "accuracy": accuracy_table, "seeds": seeds_table}[kind](job, lines)
        found += {"system": system_records, "accuracy": accuracy_records, "seeds": seeds_records}[kind](job, lines)
        if kind == "accuracy":
            curves[job] = lines
    if picture is not None and curves:
        draw(curves, picture)
        print(f"\n{picture}")
    return found


def record(kind: str, job: str, name: str, lines: Lines, samples: list[float], **more: Any) -> Result:
    """Return a record; what is common to all kinds is said here."""
    limit = {"limit": lines[0]["limit"]} if lines[0]["limit"] else {}
    return Result.of(slug(f"{kind} {job} {name}"), samples, topic=TOPIC, settings={"processes": 2, **limit}, **more,
                     command=f"python benchmarks/time_to_accuracy.py {kind} --job {job} --data DATA")  # fmt: skip


def system_records(job: str, lines: Lines) -> list[Result]:
    """Return how fast everybody else is than DDP, in the rounds that both have."""
    base, found = dict(by_round(lines, "DDP", "wall")), []
    for name in names_of(lines):
        pairs = [(rate, base[index]) for index, rate in by_round(lines, name, "wall") if index in base]
        if name != "DDP" and pairs:
            bar = Bar(of="ratio", at_least=BARS["system"][job]) if name == "unisono, 2 replicas" else None
            found.append(
                record(
                    "system",
                    job,
                    name,
                    lines,
                    [ours for ours, _ in pairs],
                    against=[theirs for _, theirs in pairs],
                    unit="samples/s",
                    peer="DDP over gloo",
                    less_is_better=False,
                    bar=bar,
                    what=f"{job.upper()}, {name}, equal settings",
                )
            )
    return found


def accuracy_records(job: str, lines: Lines) -> list[Result]:
    """Return seconds to the target, where all runs reach it, and the best accuracy of ``best``."""
    target, found = target_of(job, lines), []
    reached = {name: {line["round"]: seconds_to(line["epochs"], target) for line in lines if line["name"] == name}
               for name in names_of(lines) if target is not None}  # fmt: skip
    base = reached.get("DDP", {})
    for name, times in reached.items():
        rounds = [index for index in times if index in base]
        if name != "DDP" and rounds and all(is_reached for _, is_reached in times.values()):
            bound = "" if all(base[index][1] for index in rounds) else "DDP did not reach it in the time given"
            bar = Bar(of="ratio", at_least=BARS["accuracy"][job]) if name == "unisono, fast" else None
            found.append(record("accuracy", job, name, lines, [times[index][0] for index in rounds], unit="s", bar=bar,
                                against=[base[index][0] for index in rounds], peer="DDP over gloo", note=bound,
                                what=f"{job.upper()}, {name}: training to {100 * target:.2f} %"))  # fmt: skip
    best = [
        100 * max(epoch["accuracy"] for epoch in line["epochs"]) for line in lines if line["name"] == "unisono, best"
    ]
    if best:
        found.append(
            record(
                "accuracy",
                job,
                "best accuracy",
                lines,
                best,
                unit="%",
                bar=Bar(at_least=BARS["best"][job]),
                what=f"{job.upper()}, unisono, best: test accuracy of the best epoch",
            )
        )
    return found


def seeds_records(job: str, lines: Lines) -> list[Result]:
    """Return the test accuracy of each seed's best epoch."""
    best = {name: [100 * max(epoch["accuracy"] for epoch in line["epochs"]) for line in lines if line["name"] == name]
            for name in names_of(lines)}  # fmt: skip
    return [record("seeds", job, name, lines, values, unit="%",
                   what=f"{job.upper()}, {name}, equal settings: test accuracy of each seed's best epoch")
            for name, values in best.items()]  # fmt: skip


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
    """Accuracy over seconds of training, every run, one panel a job; a name has one colour in all of them."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullLocator, PercentFormatter

    names = sorted({name for lines in curves.values() for name in names_of(lines)})
    figure, panels = plt.subplots(1, len(curves), figsize=(6 * len(curves), 4), layout="constrained", squeeze=False)
    for axes, (job, lines) in zip(panels[0], curves.items(), strict=True):
        target = target_of(job, lines)
        if target is not None:
            axes.axhline(target, color="grey", linewidth=0.8, label=f"{100 * target:.2f} %")
        for name in names:
            label: str | None = name
            for line in (line for line in lines if line["name"] == name):
                epochs = line["epochs"]
                seconds = [sum(epoch["train_s"] for epoch in epochs[: end + 1]) for end in range(len(epochs))]
                accuracies = [epoch["accuracy"] for epoch in epochs]
                axes.plot(seconds, accuracies, "o-", color=f"C{names.index(name)}", label=label)
                label = None
        axes.set(xscale="log", xlabel="seconds of training, 2 processes", ylabel="test accuracy", title=job.upper())
        axes.set_xticks([10, 20, 50, 100, 200, 500], labels=["10", "20", "50", "100", "200", "500"])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(loc="lower right")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=130)
