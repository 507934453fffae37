"""The section of a page that sets runs beside each other: which are equal, what differs first, curves of all."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from unisono.report.charts import Series
from unisono.report.comparison.run_diff import compare_runs
from unisono.report.content import (
    SMOOTH,
    Chart,
    Remark,
    Section,
    Table,
    log_ends,
    loss_label,
    mean_of,
    room_of,
    sample,
    smooth,
    unique,
)
from unisono.report.run_section import (
    charts_of,
    curves_of,
    remarks_of,
    strategy_of,
    told_number,
    told_seconds,
    told_value,
    trained_s,
)
from unisono.report.run_view import RunView
from unisono.system.words import counted, spell_count


def compare_section(runs: Sequence[RunView]) -> Section:
    """Return several runs side by side, each against the first."""
    names = unique([run.name for run in runs])
    rows, findings = [], list(_data_remarks(runs, names))
    metrics = list(dict.fromkeys(name for run in runs for name in run.result.get("metrics", {})))[:4]
    for run, name in zip(runs, names, strict=True):
        result = run.result
        rows.append([
            name, strategy_of(run), run.worlds(), spell_count(len(run.ledger)),
            told_seconds(trained_s(result)), told_number(result.get("samples_per_s")),
            *(told_number(result.get("metrics", {}).get(metric)) for metric in metrics),
            str(result["fingerprint"])[:16] if run.state == "finished" and "fingerprint" in result else "not finished",
        ])  # fmt: skip
    for run, name in zip(runs[1:], names[1:], strict=True):
        found = compare_runs(runs[0].path, run.path)
        if found.damage:
            findings.append(Remark(text=f"{name} and {names[0]} cannot be compared: {'; '.join(found.damage)}."))
        elif found.equal:
            findings.append(Remark(text=f"{name} and {names[0]} are equal, bit for bit.", tone="good"))
        elif found.first == "length":
            findings.append(Remark(text=f"{name} and {names[0]} are equal as far as both go: {found.notes[0]}."))
        else:
            where = f"from step {found.step} on" if found.step else "in their final weights or settings"
            causes = "".join(f": {why}" for why in [*found.score, *found.notes][:1])  # a setting explains a loss
            findings.append(Remark(text=f"{name} and {names[0]} differ {where}{causes}"))
    head = ["run", "strategy", "workers", "steps", "wall", "samples/s", *metrics, "fingerprint"]
    table = Table(title="The runs side by side", head=head, rows=rows,
                  numeric=frozenset(range(3, 6 + len(metrics))), mono=frozenset({6 + len(metrics)}))  # fmt: skip
    curves = [*_side_by_side(runs, names)]
    return Section(
        title="Comparison", findings=[*findings, *remarks_of(curves)], tables=[table], charts=charts_of(curves),
        has_charts_first=True,
    )  # fmt: skip


def _data_remarks(runs: Sequence[RunView], names: Sequence[str]) -> Iterator[Remark]:
    """Yield which runs were trained on other data than the first."""
    ours = runs[0].score.get("data")
    for run, name in zip(runs[1:], names[1:], strict=True):
        if (theirs := run.score.get("data")) != ours:
            told = f"{_samples(theirs)}, {names[0]} on {_samples(ours)}"
            yield Remark(
                text=f"{name} was trained on other data than {names[0]} ({name} on {told}): two jobs, not one."
            )


def _samples(data: Any) -> str:
    count = data.get("num_samples") if isinstance(data, dict) else None
    return counted(count, "sample") if isinstance(count, int) else "data of unknown size"


def _side_by_side(runs: Sequence[RunView], names: Sequence[str]) -> Iterator[Chart | Remark]:
    speeds, losses = [run.throughput() for run in runs], [value for run in runs for value in run.losses]
    means = [mean_of(run.losses)[0] for run in runs]
    ends = [statistics.fmean(value for _, value in run.losses[-10:]) if run.losses else None for run in runs]
    medians = [statistics.median(value for _, value in speed) if speed else None for speed in speeds]
    yield from curves_of("Loss of all runs", _thin(means, names), log_y=log_ends(losses), y_label=loss_label(losses),
                      finding=_extremes(names, ends, "mean loss of the last steps, 10 at most"))  # fmt: skip
    yield from curves_of("Throughput of all runs", _thin([smooth(speed) for speed in speeds], names),
                      y_label="samples a second, within steps", note=f"Medians of {SMOOTH} steps.",
                      finding=_extremes(names, medians, "samples a second in the median step"))  # fmt: skip


def _thin(points: Sequence[Sequence[tuple[float, float]]], names: Sequence[str]) -> list[Series]:
    return [
        Series(name=name, points=sample(found, room_of(len(names)))) for name, found in zip(names, points, strict=True)
    ]


def _extremes(names: Sequence[str], values: Sequence[float | None], what: str) -> str:
    """Say which of several runs has the lowest value and which the highest; nothing of fewer than two."""
    found = [(value, name) for value, name in zip(values, names, strict=True) if value is not None]
    if len(found) < 2:
        return ""
    (low, first), (high, last) = min(found), max(found)
    if low == high:
        return f"The same in all runs: {told_value(low)}, the {what}."
    return f"From {told_value(low)} ({first}) to {told_value(high)} ({last}): the {what}."
