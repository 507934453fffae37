"""Records and the picture of `hosts`."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import range_of, slug, table
from results import ROOT, Bar, Result, read

PICTURE = ROOT / "docs" / "pictures" / "hosts.svg"
ROUNDED = {"rounded-bf16": "bf16", "rounded-int8": "int8"}
"""The exact step with `--compress`."""
OWN = (*ROUNDED, "live")
"""Steps of ours that are told."""
TELLS = ("ddp-whole", "ddp-bf16", "ddp-powersgd", *OWN)
"""What is told beside DDP as it is, without a bar; ``live`` beside the exact step without live recovery."""


def records(
    cell: str, found: dict[str, list[dict[str, float]]], facts: dict[str, Any], bar: dict[str, bool]
) -> list[Result]:
    """Return the rows of a cell: each number of replicas beside DDP and beside the limit, other DDPs beside DDP.

    Args:
        cell: Beginning of their names.
        found: By way.
        facts: What the cell is: model, hosts, link, variant, and what was measured of it.
        bar: For each way of ours, whether it has bars.
    """
    times = {way: [1e3 * one["seconds"] for one in taken] for way, taken in found.items()}
    sent = {way: round(statistics.median(one["sent"] for one in taken) / 1e6, 3) for way, taken in found.items()}
    common = {"topic": "Between hosts", "command": facts["command"]}
    settings = {
        key: facts[key]
        for key in ("model", "hosts", "ranks a host", "link", "Mbit/s", "one way, Mbit/s", "batch", "MB of gradients")
    }
    ranks = "" if facts["ranks a host"] == 1 else f" of {facts['ranks a host']} ranks"
    label = f"{facts['model']} on {facts['hosts']} hosts{ranks}, link {facts['link']}{facts['variant']}"
    wire = facts["wire_ms"]
    rows = []
    for way in (way for way in times if way.startswith("exact-")):
        count = int(way.partition("-")[2])
        alone = statistics.median(times[f"compute-{count}"])
        limit, theirs = max(alone, wire), statistics.median(times["ddp"])
        allowed = theirs / limit
        more = {"replicas": count, "computing, ms": round(alone, 1), "wire, ms": round(wire, 1),
                "limit, ms": round(limit, 1), "sent, MB": sent[way], "DDP sent, MB": sent["ddp"],
                "DDP of the limit, %": round(100 / allowed, 1)}  # fmt: skip
        least = 1.15 if allowed >= 1.25 else 1.0
        rows.append(Result.of(
            f"{cell}-{way}", times[way], against=times["ddp"], peer="DDP over gloo", unit="ms a step", **common,
            what=f"a step of {label}", bar=Bar(of="ratio", at_least=least) if bar[way] else None,
            settings=settings | more, note=f"DDP's buckets, MB: {facts['buckets']}",
        ))  # fmt: skip
        rows.append(Result.of(
            f"{cell}-{way}-limit", [100 * limit / one for one in times[way]], unit="% of the limit", **common,
            what=f"how near {label} comes to the limit", bar=Bar(at_least=90) if bar[way] else None,
            settings=settings | more,
        ))  # fmt: skip
    rows += [
        Result.of(f"{cell}-{way}", times[way], against=times["ddp"], peer="DDP over gloo", unit="ms a step", **common,
                  what=f"a step of {way}, {label}", settings=settings | {"sent, MB": sent[way]})
        for way in times if way in TELLS and way != "live"
    ]  # fmt: skip
    if "live" in times:
        rows.append(Result.of(
            f"{cell}-live", times["live"], against=times["off"], peer="live recovery off", unit="ms a step", **common,
            what=f"a step with live recovery, {label}", bar=Bar(of="ratio", at_least=0.99),
            settings=settings | {"sent, MB": sent["live"], "without, MB": sent["off"]},
        ))  # fmt: skip
    return rows


def show(rows: Sequence[Result]) -> None:
    """Print a cell: a line for each number of replicas, and for each other DDP."""
    lines = []
    for row in (row for row in rows if row.peer is not None):
        told, share = row.settings, next((one for one in rows if one.name == f"{row.name}-limit"), None)
        low, high = row.ratio_interval or (row.ratio, row.ratio)
        limit = "" if share is None else f"{told['limit, ms']} ({told['computing, ms']}, {told['wire, ms']})"
        lines.append((
            row.name, str(row.median), str(row.peer_median), f"{row.ratio:.2f} ({low:.2f}-{high:.2f})", limit,
            "" if share is None else f"{share.median:.0f} %", f"{told['sent, MB']}", f"{len(row.samples)}",
            f"{row.verdict}, {share.verdict}" if share else row.verdict,
        ))  # fmt: skip
    told = rows[0].settings
    print(f"{rows[0].what}: a stream of {told['Mbit/s']} Mbit/s (one way {told['one way, Mbit/s']})")
    table(
        ("", "ms", "DDP, or off", "times its speed", "limit (compute, wire)", "of it", "MB", "rounds", "verdicts"),
        lines,
    )


def draw(folder: Path) -> None:
    """Draw how many times as fast as DDP a step is over the bandwidth: a chart for each number of hosts.

    One replica a host; without variants. Needs two links at least.
    """
    from unisono.report.charts import Series
    from unisono.report.content import Section, line_view
    from unisono.report.picture import draw_section

    found: dict[int, dict[str, list[Result]]] = {}
    path = folder / "hosts.json"
    for row in read(path) if path.exists() else []:
        hosts, model, link = (row.settings.get(key) for key in ("hosts", "model", "link"))
        if row.ratio is not None and row.name == f"{slug(f'{model} {hosts} {link}')}-exact-{hosts}":
            found.setdefault(int(hosts), {}).setdefault(str(model), []).append(row)
    charts, ends_of = list[Any](), (list[float](), list[float]())
    for hosts, models in sorted(found.items()):
        lines, slow, fast = [], [], []
        for model, rows in sorted(models.items()):
            rows.sort(key=lambda row: row.settings["Mbit/s"])
            if len(rows) > 1:
                ratios = [float(row.ratio or 0) for row in rows]
                rates = [float(row.settings["Mbit/s"]) for row in rows]
                lines.append(Series(name=model, points=list(zip(rates, ratios, strict=True))))
                slow, fast = [*slow, ratios[0]], [*fast, ratios[-1]]
        if lines:
            ends_of = [*ends_of[0], *slow], [*ends_of[1], *fast]
            ends = [rate for line in lines for rate, _ in line.points]
            lines.append(Series(name="DDP over gloo", points=[(min(ends), 1), (max(ends), 1)], is_limit=True))
            charts.append(line_view(
                f"{hosts} hosts", lines, "Mbit/s of a TCP stream while all send", "{:,.0f}".format, "{:.3g}x".format,
                finding=f"Slowest link: {range_of(slow, '.2f')} times; fastest: {range_of(fast, '.2f')} times.",
                log_x=True, from_zero=False, y_label="times as fast as DDP",
            ))  # fmt: skip
    if not charts:
        raise SystemExit(f"hosts.py: expected records of two links for a model in {path}, found none")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    told = [
        "One worker and one replica a host; each line is a model, each point a median.",
        "On slow links unisono codes gradients without loss: fewer bytes.",
    ]
    title = f"Slow links: {range_of(ends_of[0], '.2f')} times as fast as DDP; fast links: {range_of(ends_of[1], '.2f')}"
    draw_section(Section(title=title, lines=told, charts=charts), PICTURE)
    print(PICTURE)
