"""Measured collectives and strategies as sections: rows of plain values in, charts out (pure)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from unisono.errors import ConfigError
from unisono.report.charts import Series, compared_bars
from unisono.report.content import Chart, Section, Table, bar_view, line_view
from unisono.system.words import spell_bytes, spell_count, spell_seconds

LIMIT = "memcpy"
"""The collective that is drawn as a limit in every chart: each rank must at least write its result once."""

BASE, CHOSEN = "ddp", "exact"
"""The strategy that others are compared with, and the one that is shown among them: the default."""

_ALIKE = 0.03
_LESS_IS_GOOD = ("peak memory of a process, MB", "sent in a step, KB")
Row = Mapping[str, Any]


def timing_section(rows: Sequence[Row]) -> Section:
    """Return the median time of each transport over the message size, log-log, a chart for each collective.

    Bars reach over the middle half of the repetitions. Of collectives without a message, such as a barrier, each
    transport has one point.

    Raises:
        ConfigError: No rows but the limit.
    """
    measured = [row for row in rows if row["collective"] != LIMIT]
    if not measured:
        raise ConfigError("expected measured collectives to draw, got none.")
    # One scale for all charts, so that they can be compared by eye.
    ends = min(row["q1_s"] for row in rows) / 1.5, max(row["q3_s"] for row in rows) * 1.5
    transports = list(dict.fromkeys(row["transport"] for row in measured))
    charts = []
    for ranks, collective in dict.fromkeys((row["ranks"], row["collective"]) for row in measured):
        found = [row for row in measured if (row["ranks"], row["collective"]) == (ranks, collective)]
        limit = [row for row in rows if (row["ranks"], row["collective"]) == (ranks, LIMIT)]
        charts.append(_timings(f"{collective}, {ranks} ranks", found, limit, transports, ends))
    told = "Lines: median. Bars: middle half of the repetitions. tree_all_reduce: the sum of the exact step."
    return Section(title="Collectives: time over message size", lines=[told], charts=charts)


def _timings(
    title: str, rows: Sequence[Row], limit: Sequence[Row], transports: Sequence[str], ends: tuple[float, float]
) -> Chart:
    has_sizes = any(row["bytes"] for row in rows)
    series = []
    for transport in transports:
        own = sorted((row for row in rows if row["transport"] == transport), key=lambda row: row["bytes"])
        series.append(Series(
            name=transport, spread=[(row["q1_s"], row["q3_s"]) for row in own],
            points=[(row["bytes"] if has_sizes else transports.index(transport), row["median_s"]) for row in own],
            labels=[] if has_sizes else [spell_seconds(row["median_s"]) for row in own],
        ))  # fmt: skip
    if not has_sizes:
        return line_view(title, series, "no message", lambda at: transports[round(at)], spell_seconds, log_y=ends,
                         ticks_at_points=True)  # fmt: skip
    points = [(row["bytes"], row["median_s"]) for row in sorted(limit, key=lambda row: row["bytes"])]
    if points:
        series.append(Series(name=f"{LIMIT} (limit)", points=points, is_limit=True))
    return line_view(title, series, "buffer", spell_bytes, spell_seconds, log_x=True, log_y=ends,
                     ticks_at_points=True)  # fmt: skip


def strategies_section(rows: Sequence[Row], title: str) -> Section:
    """Return strategies side by side: speed, memory, bytes sent, accuracy after equal samples.

    All are shown beside ``ddp`` where it was measured, and ``exact`` stands out. What differs
    from it by less than 3 % for every strategy is told in a sentence, without a chart: one run each shows no more.

    Raises:
        ConfigError: No rows.
    """
    if not rows:
        raise ConfigError("expected measured strategies to draw, got none.")
    columns = {
        "samples a second": [row["samples_per_s"] or 0.0 for row in rows],
        "peak memory of a process, MB": [row["peak_memory_bytes"] / 2**20 for row in rows],
        "sent in a step, KB": [row["bytes_per_step"] / 1024 for row in rows],
        "test accuracy, %": [100 * row["metrics"].get("test_accuracy", 0.0) for row in rows],
    }
    names = [row["strategy"] for row in rows]
    charts: list[Chart] = []
    alike: list[str] = []
    for column, values in columns.items():
        found = dict(zip(names, values, strict=True))
        apart = max(abs(value - found.get(BASE, math.inf)) for value in values)
        if charts and apart < _ALIKE * found.get(BASE, 0.0):  # speed is always drawn
            alike.append(f"{column}: {spell_count(min(values))} to {spell_count(max(values))}")
            continue
        charts.append(
            _differences(column, found) if BASE in found else
            bar_view(column, {bar: {column: value} for bar, value in found.items()}, "strategy", spell_count,
                     finding=_ends(found))
        )  # fmt: skip
    replicas = {row["strategy"]: row["replicas"] for row in rows}
    fastest = _fastest(dict(zip(names, columns["samples a second"], strict=True)), replicas)
    told = f" Within {100 * _ALIKE:g} % of {BASE}, so without a chart: {'; '.join(alike)}." if alike else ""
    return Section(title=f"{title}: {fastest}", lines=[f"One run each.{told}"], charts=charts)


def _ends(values: Mapping[str, float]) -> str:
    """Return who has least and who most, in one sentence."""
    low, high = min(values.values()), max(values.values())
    if low == high:
        return f"The same for all: {spell_count(low)}."
    least, most = ([name for name, value in values.items() if value == end] for end in (low, high))
    return f"Least: {', '.join(least)} ({spell_count(low)}). Most: {', '.join(most)} ({spell_count(high)})."


def _fastest(speeds: Mapping[str, float], replicas: Mapping[str, int]) -> str:
    """Return what the speeds show, for a title; each replica is a pass of its own, so their numbers are told."""
    first = max(speeds, key=lambda name: speeds[name])
    if not speeds.get(BASE) or first == BASE:
        fastest = f"{first} is the fastest, with {spell_count(speeds[first])} samples a second"
        return f"{fastest}; {CHOSEN} has {spell_count(speeds[CHOSEN])}" if first != CHOSEN in speeds else fastest
    if first != CHOSEN in speeds:
        ours, theirs = f"{CHOSEN} ({replicas[CHOSEN]} replicas)", f"{BASE} ({replicas[BASE]})"
        chosen = f"{ours} is {speeds[CHOSEN] / speeds[BASE]:.2g} times as fast as {theirs}"
        return f"{chosen}; {first}, the fastest, {speeds[first] / speeds[BASE]:.2g} times"
    return f"{first} is the fastest, {speeds[first] / speeds[BASE]:.2g} times as fast as {BASE}"


def _differences(column: str, values: Mapping[str, float]) -> Chart:
    """Return each value beside that of `BASE`: bars from 0, of a share in percent the difference in points."""
    base, is_share, less_is_good = values[BASE], column.endswith("%"), column in _LESS_IS_GOOD
    whole = base / 100 if base and not is_share else 1.0
    unit = " points" if is_share else "%" if base else ""
    apart = {name: (value - base) / whole for name, value in values.items()}
    spelled = {name: f"{_apart(value)}{unit if value else ''}" for name, value in apart.items()}
    rows = [[name, spell_count(values[name]), spelled[name]] for name in values]
    table = Table(title=column, head=["strategy", column, f"beside {BASE}"], rows=rows, numeric=frozenset({1, 2}))
    texts = spelled if is_share else {name: _with_ratio(value, base) for name, value in values.items()}
    title = f"{column}; {'less' if less_is_good else 'more'} is better"
    title += f", beside {BASE}'s {spell_count(base)}" * is_share
    drawing = compared_bars(
        title, apart if is_share else values, line=0.0 if is_share else base, alike=_ALIKE * base, texts=texts,
        less_is_good=less_is_good, chosen=CHOSEN,
    )  # fmt: skip
    note = f"Green: better than {BASE}. Orange: worse. Grey: within {100 * _ALIKE:g} %." if any(apart.values()) else ""
    return Chart(title=title, drawing=drawing, values=table, note=note, finding=_ends(values))


def _with_ratio(value: float, base: float) -> str:
    """Return a value, and how many times that of `BASE` it is."""
    return (
        f"{spell_count(value)} ({value / base:.2g}x)"
        if value and abs(value - base) > _ALIKE * base > 0
        else spell_count(value)
    )


def _apart(difference: float) -> str:
    """Return a difference with its sign, in about three digits; ``same`` for none."""
    return "same" if difference == 0 else f"{difference:+,.0f}" if abs(difference) >= 100 else f"{difference:+.3g}"
