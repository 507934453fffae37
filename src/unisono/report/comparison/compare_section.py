"""The section of a page that sets runs beside each other: which are equal, what differs first, curves of all."""

import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from unisono.observe.compare import said_now
from unisono.report.charts import Series
from unisono.report.comparison.run_diff import RunDiff, compare_runs
from unisono.report.content import (
    Chart,
    Remark,
    Section,
    Table,
    flat,
    line_view,
    log_ends,
    loss_label,
    mean_of,
    rates_of,
    room_of,
    sample,
    unique,
)
from unisono.report.run_section import (
    MOST_METRICS,
    OVER,
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
from unisono.system.words import counted, spell_count, spell_seconds

_HASHES = {"model.structure", "model.initial_weights", "data.fingerprint"}
_SMOOTH = "Of many steps a point is the mean of a fortieth of its run."
_MOST_SETTINGS = 12  # of more, the table is folded


def compare_section(runs: Sequence[RunView]) -> Section:
    """Return several runs side by side: runs of one score against each other, others against the first."""
    names = unique([run.name for run in runs])
    rows, findings = [], [*_equalities(runs, names), *_data_remarks(runs, names), *_differences(runs, names)]
    metrics = list(dict.fromkeys(name for run in runs for name in run.result.get("metrics", {})))[:4]
    for run, name in zip(runs, names, strict=True):
        result, (seconds, speed) = run.result, _cost(run)
        rows.append([
            name, strategy_of(run), run.worlds(), spell_count(len(run.ledger)),
            told_seconds(seconds), told_number(speed),
            *(told_number(result.get("metrics", {}).get(metric)) for metric in metrics),
            str(result["fingerprint"])[:16] if run.state == "finished" and "fingerprint" in result else "not finished",
        ])  # fmt: skip
    head = ["run", "strategy", "workers", "steps", "wall", "samples/s", *metrics, "fingerprint"]
    table = Table(title="The runs side by side", head=head, rows=rows,
                  numeric=frozenset(range(3, 6 + len(metrics))), mono=frozenset({6 + len(metrics)}))  # fmt: skip
    curves = [*_side_by_side(runs, names)]
    settings = [*_settings(runs, names)]
    is_long = any(len(found.rows) > _MOST_SETTINGS for found in settings)
    return Section(
        title="Comparison", findings=[*findings, *remarks_of(curves)], tables=[table, *([] if is_long else settings)],
        charts=charts_of(curves), folded=settings if is_long else [],
    )  # fmt: skip


def _settings(runs: Sequence[RunView], names: Sequence[str]) -> Iterator[Table]:
    """Yield a table of the settings in which the runs differ, where they do.

    Hashes, which follow from others, are left out, and so are parts that only some of the models have.
    """
    found = [{row[0]: row[1] for row in flat(said_now(run.score))} for run in runs]
    keys = dict.fromkeys(key for one in found for key in one if key not in _HASHES)
    shown = (key for key in keys if not key.startswith("modules.") or all(key in one for one in found))
    rows = [[key, *(one.get(key, "-") for one in found)] for key in shown]
    if rows := [row for row in rows if len({*row[1:]}) > 1]:
        yield Table(title="Settings that differ", head=["setting", *names], rows=rows)


def _groups(runs: Sequence[RunView]) -> list[list[int]]:
    """Return the places of the runs of each score, the longest first; groups in the order of their first runs."""
    found: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        score = {name: value for name, value in said_now(run.score).items() if name != "fork"}
        found.setdefault(json.dumps(score, sort_keys=True), []).append(place)
    return [sorted(places, key=lambda place: -len(runs[place].ledger)) for places in found.values()]


def _equalities(runs: Sequence[RunView], names: Sequence[str]) -> Iterator[Remark]:
    """Yield which runs of one score are equal, and how far; and where one of them differs, or is damaged."""
    for base, *others in _groups(runs):
        equal, as_far, notes, wrong = [base], [], [], []
        for place in others:
            found = compare_runs(runs[base].path, runs[place].path)
            is_open = found.first == "final weights" and {runs[base].state, runs[place].state} - OVER
            if found.equal:
                equal.append(place)
            elif not found.damage and (found.first == "length" or is_open):
                as_far.append(place)
                notes.append(f"{names[place]} to step {len(runs[place].ledger)}")
                notes[-1] = found.notes[0] if "damaged" in found.notes[0] else notes[-1]
            else:
                wrong.append(_difference(found, names[place], names[base]))
        if len(equal) > 1:
            yield Remark(text=f"{_listed(equal, names)} are equal, bit for bit.", tone="good")
        if as_far:
            told = f"{_listed([base, *as_far], names)} are equal as far as {'both' if len(as_far) == 1 else 'all'} go"
            yield Remark(text=f"{told}: {'; '.join(notes)}.", tone="good")
        yield from wrong


def _differences(runs: Sequence[RunView], names: Sequence[str]) -> Iterator[Remark]:
    """Yield in what a run of each other score differs from the first."""
    for places in _groups(runs)[1:]:
        place = min(places)
        yield _difference(compare_runs(runs[0].path, runs[place].path), names[place], names[0])


def _difference(found: RunDiff, name: str, other: str) -> Remark:
    if found.damage:
        return Remark(text=f"{name} and {other} cannot be compared: {'; '.join(found.damage)}.")
    steps = f"from step {found.step} on" if found.first != "length" else "in their settings"
    where = steps if found.step else "in their final weights or settings"
    causes = "".join(f": {why}" for why in [*found.score, *found.notes][:1])  # a setting explains a loss
    causes += ", and other settings: see the table" if len(found.score) > 1 else ""
    return Remark(text=f"{name} and {other} differ {where}{causes}")


def _listed(places: Sequence[int], names: Sequence[str]) -> str:
    *most, last = [names[place] for place in sorted(places)]
    return f"{', '.join(most)} and {last}"


def _cost(run: RunView) -> tuple[Any, Any]:
    """Return a run's seconds and samples a second: as its result tells them, or its recorded steps, of all launches."""
    if run.state in OVER and (known := trained_s(run.result)) is not None:
        totals = run.result.get("totals")
        usual = run.result.get("samples_per_s")
        return known, totals.get("samples_per_s", usual) if isinstance(totals, dict) else usual
    sizes = {line["step"]: line["num_samples"] for line in run.ledger}
    seconds = sum(launch.ended_s - launch.began_s for launch in run.launches)
    samples = sum(sizes.get(step, 0) for _, step in {(record.launch, record.step) for record in run.phases})
    return (seconds, round(samples / seconds, 1)) if seconds else (None, None)


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
    metrics = [run.metrics() for run in runs]
    yield from curves_of("Loss of all runs", _thin(means, names), log_y=log_ends(losses), y_label=loss_label(losses),
                      note=_SMOOTH, finding=_extremes(names, ends, "mean loss of the last steps, 10 at most")
                      )  # fmt: skip
    for metric in [name for name in dict.fromkeys(itertools.chain(*metrics)) if name != "train/loss"][:MOST_METRICS]:
        lines = [found.get(metric, []) for found in metrics]
        if sum(map(bool, lines)) > 1:
            last = [points[-1][1] if points else None for points in lines]
            shown = _thin([mean_of(points)[0] for points in lines], names)
            finding = _extremes(names, last, "last values")
            log_y = log_ends([*itertools.chain(*lines)]) if "loss" in metric else None
            label = metric if log_y is None else f"{metric}, on a logarithmic scale"
            yield from curves_of(
                f"{metric} of all runs", shown, from_zero=False, log_y=log_y, y_label=label, finding=finding
            )
    timed = [line for line in _thin([*map(_by_time, runs, means)], names) if len(line.points) > 1]
    if len(timed) > 1:
        yield line_view(
            "Loss of all runs by time", timed, "time", spell_seconds, told_value, log_y=log_ends(losses),
            y_label=loss_label(losses), note="Each from its first step; interruptions are left out.",
        )  # fmt: skip
    yield from curves_of("Throughput of all runs", _thin([rates_of(speed)[0] for speed in speeds], names),
                      y_label="samples a second, within steps",
                      finding=_extremes(names, medians, "samples a second in the median step"))  # fmt: skip


def _by_time(run: RunView, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return a curve over the seconds since the first step, those between two launches left out."""
    before, began = 0.0, dict[int, float]()
    for launch in run.launches:
        began[launch.number] = launch.began_s - before
        before += launch.ended_s - launch.began_s
    at = {step: found[0].began_ns / 1e9 - began[found[0].launch] for step, found in run.final_phases().items()}
    return sorted((at[int(step)], value) for step, value in points if step in at)


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
