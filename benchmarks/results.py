"""What a benchmark leaves behind: one record for each figure, checked, in ``benchmarks/results/BENCHMARK.json``.

A new run replaces the records of the same names and keeps the others. `figures.py` makes docs/figures.md of all of
them.
"""

import json
import math
import os
import re
import statistics
import sys
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal, Self

from origin import ROOT, command_line, commit, machine

RESULTS = ROOT / "benchmarks" / "results"
HISTORY = "docs/measurements.md"
"""The source of records that were taken before there were result files."""
LOAD_BEFORE = os.getloadavg()[0]

Verdict = Literal["met", "missed", "told"]
"""`told`: the figure has no bar."""


class ResultError(ValueError):
    """A record that does not fit the schema; says the file, the record and the field."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What a figure has to reach: `of` names the field of the record that is held against it."""

    of: Literal["median", "ratio"] = "median"
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """One figure.

    Attributes:
        name: The record's key in its file.
        topic: The section of docs/figures.md.
        what: The claim, in words.
        unit: Of samples, median and quartiles.
        samples: One figure a round; empty only where `source` says that they were not kept.
        median: Of the samples; None only where the history has no more than the ratio.
        quartiles: First and third, None for one sample.
        peer: What it is compared with.
        peer_median: The peer's median, in `unit`.
        ratio: How many times better than the peer; above 1 is better for us. Median of the pairs of one round each.
        ratio_interval: Two of the pairs' ratios between which the true median lies with at least 95 % where rounds are
            independent, least and largest below six pairs (`interval_of`); None where the pairs were not kept.
        bar: What the figure has to reach.
        verdict: Whether it does.
        command: How to repeat it, from the root of the repository.
        commit: Of the code that was measured; "+" behind it: with changes. None where nobody has noted it.
        date: The day, UTC.
        machine: Cores, memory, system, versions.
        load: Load averages before and after, as far as they are known.
        settings: Whatever else decides the figure: ranks, bytes, link, hosts, ...
        source: None for a run of the benchmark, else the page that the figure was taken from.
        note: What a reader has to know.
    """

    name: str
    topic: str
    what: str
    unit: str
    samples: list[float]
    median: float | None
    quartiles: list[float] | None
    peer: str | None = None
    peer_median: float | None = None
    ratio: float | None = None
    ratio_interval: list[float] | None = None
    bar: Bar | None = None
    verdict: Verdict
    command: str
    commit: str | None
    date: str
    machine: str
    load: list[float]
    settings: dict[str, str | int | float | bool] = field(default_factory=dict)
    source: str | None = None
    note: str = ""

    @classmethod
    def of(
        cls,
        name: str,
        samples: Sequence[float],
        *,
        topic: str,
        what: str,
        unit: str,
        peer: str | None = None,
        against: Sequence[float] | None = None,
        less_is_better: bool = True,
        bar: Bar | None = None,
        command: str | None = None,
        settings: dict[str, str | int | float | bool] | None = None,
        note: str = "",
    ) -> Self:
        """Return the record of a run that has just been made; `against` are the peer's samples, round by round."""
        samples = [rounded(value) for value in samples]
        pairs = list(zip(samples, against, strict=True)) if against else []
        ratios = [(theirs / ours if less_is_better else ours / theirs) for ours, theirs in pairs if ours and theirs]
        median, ratio = statistics.median(samples), statistics.median(ratios) if ratios else None
        return cls(
            name=name,
            topic=topic,
            what=what,
            unit=unit,
            samples=samples,
            median=rounded(median),
            quartiles=quartiles(samples),
            peer=peer,
            peer_median=rounded(statistics.median(against)) if against else None,
            ratio=None if ratio is None else rounded(ratio),
            ratio_interval=interval_of(ratios),
            bar=bar,
            verdict=verdict_of(bar, median, ratio),
            command=command if command and "--quick" not in sys.argv else command_line(),
            commit=commit(),
            date=datetime.now(UTC).date().isoformat(),
            machine=machine(),
            load=[round(value, 1) for value in (LOAD_BEFORE, os.getloadavg()[0])],
            settings=settings or {},
            note=note,
        )


def rounded(value: float) -> float:
    """Return five significant digits."""
    return float(f"{value:.5g}")


def quartiles(samples: Sequence[float]) -> list[float] | None:
    """Return the first and third quartile, None for one sample."""
    if len(samples) < 2:
        return None
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return [rounded(low), rounded(high)]


def interval_of(values: Sequence[float]) -> list[float] | None:
    """Return the narrowest pair of order statistics around the median that holds it with at least 95 % (sign test).

    Below six values no pair does: least and largest. None for less than two values.
    """
    count, found = len(values), sorted(values)
    if count < 2:
        return None
    cut, below = 0, 1  # so many are left out at each end; so many of 2**count outcomes leave fewer there
    while 40 * (below := below + math.comb(count, cut + 1)) <= 2**count:  # in whole numbers: 2**1024 is no float
        cut += 1
    return [rounded(found[cut]), rounded(found[-1 - cut])]


def verdict_of(bar: Bar | None, median: float | None, ratio: float | None) -> Verdict:
    """Return whether the figure that a bar names reaches it."""
    if bar is None:
        return "told"
    value = ratio if bar.of == "ratio" else median
    if value is None:
        raise ResultError(f"expected a {bar.of} to hold against the bar, found none")
    is_met = value >= bar.at_least if bar.at_least is not None else value <= typing.cast(float, bar.at_most)
    return "met" if is_met else "missed"


def write(path: Path, found: Iterable[Result]) -> None:
    """Put records into a file: those of the same names are replaced, the others stay.

    Raises:
        ResultError: A record, new or old, does not fit the schema.
    """
    known = {result.name: result for result in read(path)} if path.exists() else {}
    for result in found:
        validate(asdict(result), path.name)
        known[result.name] = result
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [
        "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in asdict(result).items()) + "\n}"
        for _, result in sorted(known.items())
    ]
    draft = path.with_suffix(".tmp")
    draft.write_text("[\n" + ",\n".join(records) + "\n]\n")
    draft.replace(path)


def read(path: Path) -> list[Result]:
    """Return the records of a file.

    Raises:
        ResultError: The file is no JSON list of records, or one of them does not fit the schema.
    """
    try:
        records = json.loads(path.read_text())
    except ValueError as error:
        raise ResultError(f"{path.name}: expected JSON, {error}") from error
    if not isinstance(records, list):
        raise ResultError(f"{path.name}: expected a list of records, found {type(records).__name__}")
    found = [validate(record, path.name) for record in records]
    if len({result.name for result in found}) < len(found):
        raise ResultError(f"{path.name}: expected each name once, found {[result.name for result in found]}")
    return found


def validate(record: dict[str, Any], where: str) -> Result:
    """Return the record as a `Result`.

    Raises:
        ResultError: A field is missing, unknown, of another type, or contradicts another one.
    """
    where = f"{where}: {record.get('name', '?')}"
    names = {entry.name for entry in fields(Result)}
    if set(record) != names:
        odd = sorted(names ^ set(record))
        raise ResultError(f"{where}: expected the fields {sorted(names)}; missing or unknown: {odd}")
    for name, kind in typing.get_type_hints(Result).items():
        if not _fits(record[name], kind):
            raise ResultError(f"{where}: expected {name} to be {kind}, found {record[name]!r}")
    bar = record["bar"] and Bar(**record["bar"])
    result = Result(**{**record, "bar": bar})
    for is_right, expected in _rules(result):
        if not is_right:
            raise ResultError(f"{where}: expected {expected}")
    return result


def _fits(value: object, kind: Any) -> bool:
    """Whether a value from JSON is of an annotated type; numbers are finite."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is list:
        return isinstance(value, list) and all(_fits(entry, parts[0]) for entry in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items())
    if kind is Bar:
        hints = typing.get_type_hints(Bar)
        return isinstance(value, dict) and set(value) == set(hints) and all(_fits(value[k], hints[k]) for k in hints)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind)


def _rules(result: Result) -> Iterable[tuple[bool, str]]:
    """Yield whether what one field says is what the others say, and what is expected of it."""
    is_new, samples = result.source is None, result.samples
    yield all([result.name, result.topic, result.what, result.unit, result.command, result.machine]), "no empty text"
    yield result.source in (None, HISTORY), f"source to be null or {HISTORY}"
    yield bool(samples) or not is_new, "samples (only the history may lack them)"
    yield result.median is not None or result.ratio is not None, "a median or a ratio"
    if samples:
        yield (
            _near(result.median, statistics.median(samples)),
            f"the median of the samples, {statistics.median(samples)}",
        )
        low_high = quartiles(samples)
        yield result.quartiles == low_high or not is_new, f"the quartiles of the samples, {low_high}"
    yield result.quartiles is None or len(result.quartiles) == 2, "two quartiles"
    yield result.ratio is None or result.peer is not None, "a peer beside the ratio"
    if result.ratio_interval is not None:
        low, ratio, high = result.ratio_interval[0], result.ratio, result.ratio_interval[-1]
        yield (
            ratio is not None and len(result.ratio_interval) == 2 and low <= ratio * 1.001 and ratio * 0.999 <= high,
            "an interval of two ratios around the ratio",
        )
    if result.bar is not None:
        yield (result.bar.at_least is None) != (result.bar.at_most is None), "a bar with at_least or at_most"
        yield getattr(result, result.bar.of) is not None, f"the {result.bar.of} that the bar is about"
    verdict = verdict_of(result.bar, result.median, result.ratio)
    yield result.verdict == verdict, f"the verdict {verdict!r}, found {result.verdict!r}"
    yield (
        result.commit is None or re.fullmatch(r"[0-9a-f]{7,40}\+?", result.commit) is not None,
        "a commit's hash or null",
    )
    yield _is_day(result.date), f"a day like 2026-11-21, found {result.date!r}"
    yield not re.search(r"(^|[\s=])/", result.command), "a command without a path of one machine"
    yield len(result.load) <= 2 and (bool(result.load) or not is_new), "the load before and after"


def _near(value: float | None, expected: float) -> bool:
    return value is not None and math.isclose(value, expected, rel_tol=1e-3, abs_tol=1e-9)


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
