"""A kept forecast as a section of a page."""

from collections.abc import Mapping
from typing import Any

from unisono.errors import ConfigError
from unisono.report.charts import Series
from unisono.report.content import Remark, Section, Table, bar_view, line_view
from unisono.system.words import counted, spell_bytes, spell_count, spell_seconds

KIND, VERSION = "unisono forecast", 1
PARTS = {
    "compute_s": "compute", "wait_s": "stragglers", "data_s": "data", "communication_s": "communication",
    "update_s": "update",
}  # fmt: skip


def forecast_section(told: Mapping[str, Any]) -> Section:
    """Return a forecast's section."""
    if told.get("version") != VERSION:
        raise ConfigError(
            f"a forecast has version {told.get('version')!r}, this program reads version {VERSION}. "
            "Hint: forecast again."
        )
    try:
        return _section(told)
    except (KeyError, TypeError, ValueError, IndexError, StopIteration, AttributeError, ArithmeticError) as error:
        raise ConfigError(f"a forecast is damaged: {error!r}. Hint: forecast again.") from error


def _section(told: Mapping[str, Any]) -> Section:
    rows = told["forecasts"]
    best = [_of(row, row["best"]) for row in rows]
    cells = []
    for row, one in zip(rows, best, strict=True):
        losses = row["losses"]
        saving = [spell_seconds(losses["interval_s"]), f"{losses['useful']:.1%}"] if losses else ["", ""]
        cells.append([
            spell_count(row["ranks"]), row["best"], spell_seconds(one["step_s"]), f"{one['speedup']:,.4g}",
            f"{one['efficiency']:.1%}", one["limit"], *saving,
            _run_text(row["run_s"]), spell_count(row["idle"]) if row["idle"] else "",
        ])  # fmt: skip
    head = ["ranks", "best", "step", "speed-up", "efficiency", "limit", "save every", "useful", "whole run", "idle"]
    asked = [place for place in range(len(head)) if any(row[place] for row in cells)]
    table = Table(
        title="Best synchronous strategy", head=[head[place] for place in asked],
        rows=[[row[place] for place in asked] for row in cells],
        numeric=frozenset(at for at, place in enumerate(asked) if place not in (1, 5)),
    )  # fmt: skip
    chosen = rows[-1]["best"]
    names = [chosen, *(one["strategy"] for one in rows[0]["predictions"] if one["strategy"] != chosen)]
    ranks = [float(row["ranks"]) for row in rows]
    # Near the axis the name would run into its numbers.
    named = [*[""] * (len(rows) - 1), chosen] if len(rows) > 1 and best[-1]["efficiency"] > 0.25 else []
    series = [
        Series(name=name, points=[(float(row["ranks"]), _of(row, name)["efficiency"]) for row in rows],
               labels=named if name == chosen else (), is_pale=name != chosen)
        for name in names
    ]  # fmt: skip
    series.append(Series(name="ideal", points=[(count, 1.0) for count in ranks], is_limit=True))
    percent = "{:.1%}".format
    shares = {
        counted(row["ranks"], "rank"): {name: one[key] / one["step_s"] for key, name in PARTS.items()}
        for row, one in zip(rows[:32], best[:32], strict=True)
    }
    charts = [
        line_view(
            "Efficiency by strategy", series, "ranks", spell_count, percent, log_x=len(rows) > 1, ticks_at_points=True,
            y_label="efficiency",
            finding=f"On {spell_count(rows[-1]['ranks'])} ranks {chosen} is best, with "
            f"{percent(best[-1]['efficiency'])}; the others are pale.",
        ),
        bar_view(
            "Where a step of the best strategy goes", shares, "ranks", percent,
            finding=f"On {spell_count(rows[-1]['ranks'])} ranks {_largest(best[-1])}.",
        ),
    ]  # fmt: skip
    assumed = [
        [f"{group}.{key}", str(value)] for group in ("job", "machine", "reliability") if told[group]
        for key, value in told[group].items()
    ]  # fmt: skip
    last = rows[-1]
    strategies = [
        [one["strategy"], spell_seconds(one["step_s"]), percent(one["efficiency"]), spell_bytes(one["sent_bytes"])]
        for one in sorted(last["predictions"], key=lambda one: one["step_s"])
    ]
    tables = [
        table,
        Table(title=f"All on {spell_count(last['ranks'])} ranks", rows=strategies,
              head=["strategy", "step", "efficiency", "a rank sends"], numeric=frozenset({1, 2, 3})),
    ]  # fmt: skip
    kind = "weak" if told["job"]["weak"] else "strong"
    findings = [Remark(text=str(note)) for note in told["notes"]]
    return Section(
        title=f"Forecast: {kind} scaling to {spell_count(last['ranks'])} ranks", findings=findings, tables=tables,
        charts=charts, folded=[Table(title="What was assumed", head=["name", "value"], rows=assumed)],
    )  # fmt: skip


def _largest(one: Mapping[str, Any]) -> str:
    """Say which part takes most of a step."""
    key = max(PARTS, key=lambda key: one[key])
    return f"{PARTS[key]} takes most of a step, {one[key] / one['step_s']:.0%}"


def _run_text(run_s: float | str | None) -> str:
    return "" if run_s is None else run_s if isinstance(run_s, str) else spell_seconds(run_s)


def _of(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(one for one in row["predictions"] if one["strategy"] == name)
    return found
