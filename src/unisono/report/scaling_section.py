"""A scaling study in words, tables and charts (pure)."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from unisono.report.charts import Series, Spell
from unisono.report.content import Chart, Remark, Section, Table, bar_view, line_view
from unisono.scaling.study import STEP_PHASES, Study, beyond_ideal, summarise
from unisono.system.words import counted, spell_count, spell_seconds

_HEAD = ["workers", "step", "fastest to slowest", "samples/s", "speed-up", "efficiency", "start-up", "saving", "load"]
_MEANING = {
    "data": "waiting for data",
    "forward": "computing forward",
    "backward": "computing backward",
    "reduce": "exchanging gradients and waiting for the slowest",
    "update": "the update, which every worker does whole",
    "other": "what a step costs whatever its size",
}


def describe_machine(study: Study) -> str:
    """Return where and how it was measured, in one line."""
    trials = study.trials
    repeats = max(trial.repeat for trial in trials) + 1
    loads = [trial.load for trial in trials]
    cpu = study.environment.get("cpu") or study.environment.get("device_name") or study.device
    return (
        f"{study.cores} cores of {cpu}, {study.threads} thread{'s' * (study.threads > 1)} a worker, torch "
        f"{study.environment.get('torch', '?')}, {repeats} run{'s' * (repeats > 1)} of {trials[0].steps} steps, load "
        f"{min(loads):.1f} to {max(loads):.1f}, {study.date[:10]}"
    )


def headline(study: Study) -> str:
    """Return what the study shows, in one sentence."""
    rows = summarise(study)
    crowded = [row.workers for row in rows if row.is_oversubscribed]
    told = [f"{counted(rows[0].workers, 'worker')}, {spell_seconds(rows[0].step_s)} a step"]
    if len(rows) > 1:
        best, base = max(rows[1:], key=lambda row: row.speedup), counted(rows[0].workers, "worker")
        told = [f"{best.workers} workers are {best.speedup / rows[0].speedup:.2g} times as fast as {base}"]
    if crowded:
        told.append(f"{_list(crowded)} take turns on {counted(study.cores, 'core')}")
    if _is_busy(study):
        told.append("the machine was busy")
    return f"{study.target}: {'; '.join(told)}"


def ideal_of(workers: Iterable[int]) -> Series:
    """Return the line on which so many workers are so many times as fast."""
    return Series(name="ideal", points=[(float(count), float(count)) for count in sorted(set(workers))], is_limit=True)


def why_it_flattens(study: Study) -> list[str]:
    """Return for each number of workers what takes longer than the ideal, the largest first."""
    rows = summarise(study)
    beyond = beyond_ideal(rows, study.weak)
    lines = []
    for row in rows[1:]:
        ideal_s = rows[0].step_s * (1.0 if study.weak else rows[0].workers / row.workers)
        over_s = row.step_s - ideal_s
        if over_s <= 0.02 * ideal_s:
            lines.append(
                f"{row.workers} workers: a step takes {spell_seconds(row.step_s)}, as ideal as can be measured."
            )
            continue
        parts = sorted(beyond[row.workers].items(), key=lambda part: -part[1])
        told = [f"{spell_seconds(s)} {_MEANING[phase]}" for phase, s in parts if s > 0.1 * over_s][:3]
        turns = f"; {row.workers} workers share {study.cores} cores" if row.is_oversubscribed else ""
        lines.append(
            f"{row.workers} workers: {spell_seconds(over_s)} a step beyond the ideal {spell_seconds(ideal_s)}"
            f"{': ' + ', '.join(told) if told else ''}{turns}."
        )
    return lines


def doubts(study: Study) -> list[str]:
    """Return what speaks against the numbers: ranks that share cores, and a machine that was busy with something else.

    On a crowded machine more workers get a larger share of it, which looks like speed-up.
    """
    found = []
    crowded = [row.workers for row in summarise(study) if row.is_oversubscribed]
    if crowded:
        found.append(
            f"{_list(crowded)} workers on {study.cores} cores take turns: no speed-up is to be expected from them."
        )
    if _is_busy(study):
        worst = max(trial.load for trial in study.trials)
        found.append(
            f"The machine was busy with other work (load up to {worst:.1f}): more workers get a larger share of it, so "
            "this speed-up is not to be trusted. Measure again when it is quiet."
        )
    return found


def _is_busy(study: Study) -> bool:
    return max(trial.load for trial in study.trials) > study.workers[-1] * study.threads + 1


def scaling_sections(studies: Sequence[Study]) -> list[Section]:
    """Return a section for each study, and one that puts several side by side."""
    sections = [_section(study) for study in studies]
    if len(studies) > 1:
        names = [f"{study.strategy}, {study.date}" for study in studies]
        lines = [
            Series(name=name, points=[(row.workers, row.speedup) for row in summarise(study)])
            for name, study in zip(names, studies, strict=True)
        ]
        ideal = ideal_of(count for study in studies for count in study.workers)
        sections.insert(0, Section(title="Scaling side by side", charts=[_chart("Speed-up", [*lines, ideal], _times)]))
    return sections


def _section(study: Study) -> Section:
    rows = summarise(study)
    cells = []
    for row in rows:
        loads = [trial.load for trial in study.trials if trial.workers == row.workers]
        cells.append([
            f"{row.workers}{' (more than cores)' if row.is_oversubscribed else ''}", spell_seconds(row.step_s),
            f"{spell_seconds(row.low_s)} to {spell_seconds(row.high_s)}", spell_count(round(row.samples_per_s)),
            f"{row.speedup:.2f}", f"{row.efficiency:.0%}", spell_seconds(row.startup_s),
            spell_seconds(row.checkpoint_s), f"{min(loads):.1f}-{max(loads):.1f}",
        ])  # fmt: skip
    findings = [Remark(text=line) for line in why_it_flattens(study)]
    if study.agrees is not None:
        text = f"{len(study.fingerprints)} different fingerprints, where one is promised"
        findings.append(
            Remark(text=f"One fingerprint on {_list(study.workers)} workers: {next(iter(study.fingerprints))[:16]}",
                    tone="good") if study.agrees else Remark(text=text, tone="alarm")
        )  # fmt: skip
    findings += [Remark(text=text, tone="alarm") for text in doubts(study)]
    speed = [
        Series(name="measured", points=[(row.workers, row.speedup) for row in rows],
               spread=[(row.speedup * row.step_s / row.high_s, row.speedup * row.step_s / row.low_s) for row in rows],
               labels=[f"{_times(row.speedup)}, {spell_seconds(row.step_s)}" for row in rows]),
        ideal_of(row.workers for row in rows),
    ]  # fmt: skip
    crowded = frozenset(float(row.workers) for row in rows if row.is_oversubscribed)
    red = "Red: more workers than cores, which take turns." if crowded else ""
    best, last = max(rows, key=lambda row: row.speedup), rows[-1]
    longest = max(last.parts_s, key=lambda part: last.parts_s[part])
    charts = [
        _chart("Speed-up, and the time of a step", speed, _times, alarms=crowded, note=red,
               y_label="times as fast as one worker",
               finding=f"Highest on {counted(best.workers, 'worker')}: {_times(best.speedup)}, "
               f"{best.efficiency:.0%} of the ideal."),
        bar_view("Where a step goes", {counted(row.workers, "worker"): row.parts_s for row in rows}, "workers",
                 spell_seconds, finding=f"On {counted(last.workers, 'worker')} most of it is {longest}.",
                 note="Phases: of the median rank. Slowest rank: by how much it is behind that one."),
    ]  # fmt: skip
    for count in study.workers:
        found = [trial for trial in study.trials if trial.workers == count]
        ranks = {f"rank {rank}": {phase: statistics.median(t.phases_s[rank][phase] for t in found)
                                  for phase in STEP_PHASES} for rank in range(min(count, 32))}  # fmt: skip
        if count > 1:
            charts.append(bar_view(f"{count} workers, rank by rank", ranks, "rank", spell_seconds))
    environment = [[name, str(value)[:200]] for name, value in study.environment.items()]
    trials = [[str(t.workers), str(t.repeat + 1), spell_seconds(t.step_s), spell_seconds(t.startup_s),
               spell_seconds(t.total_s), f"{t.load:.1f}", t.fingerprint[:16]] for t in study.trials]  # fmt: skip
    return Section(
        title=headline(study),
        lines=[f"{'Weak' if study.weak else 'Strong'} scaling, {study.strategy}: {describe_machine(study)}",
               f"Made by: {study.command}"], findings=findings,
        tables=[Table(title="Scaling", head=_HEAD, rows=cells, numeric=frozenset(range(1, 9)))], charts=charts,
        folded=[
            Table(title="All runs", head=["workers", "run", "step", "start-up", "in all", "load", "fingerprint"],
                  rows=trials, numeric=frozenset(range(1, 6)), mono=frozenset({6})),
            Table(title="Environment", head=["entry", "value"], rows=environment, mono=frozenset({1})),
        ],
    )  # fmt: skip


def _chart(title: str, series: Sequence[Series], spell: Spell, **more: Any) -> Chart:
    return line_view(title, series, "workers", spell_count, spell, ticks_at_points=True, **more)


def _times(value: float) -> str:
    return f"{round(value, 2):g}x"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
