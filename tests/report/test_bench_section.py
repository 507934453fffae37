"""Measured collectives and strategies: a chart for each, a line a transport, the limit, and words for numbers."""

import pytest

from report.drawn import check_texts, kinds, tree_of
from unisono.errors import ConfigError
from unisono.report.bench_section import strategies_section, timing_section
from unisono.report.charts import HEIGHT
from unisono.report.picture import draw_section
from unisono.system.words import spell_bytes, spell_seconds


def row(collective, transport, size, seconds, ranks=2):
    return {
        "ranks": ranks, "collective": collective, "transport": transport, "bytes": size,
        "median_s": seconds, "q1_s": seconds * 0.9, "q3_s": seconds * 1.2,
    }  # fmt: skip


def rows(ranks=(2,), sizes=(4096, 65536, 1 << 20)):
    found = []
    for count in ranks:
        for size in sizes:
            for number, transport in enumerate(("shm", "gloo", "torch")):
                found.append(row("all_reduce", transport, size, (number + 1) * (1e-5 + size / 1e9), count))
            found += [row("all_gather", name, size, 1e-4 + size / 1e9, count) for name in ("shm", "gloo")]
            found.append(row("memcpy", "memory", size, 1e-7 + size / 1e10, count))
        found += [row("barrier", name, 0, 1e-4, count) for name in ("shm", "gloo", "torch")]
    return found


def strategy(name, **changes):
    return {
        "strategy": name, "samples_per_s": 1234.5, "peak_memory_bytes": 300 << 20, "bytes_per_step": 50_000,
        "metrics": {"test_accuracy": 0.9}, "replicas": 8 if name == "exact" else 2, **changes,
    }  # fmt: skip


def charts(given):
    """Each chart's title, and its tree."""
    return {chart.title: tree_of(chart.drawing.svg()) for chart in timing_section(given).charts}


@pytest.mark.parametrize(
    "given",
    [
        rows(),
        rows(ranks=(2, 4)),
        rows(sizes=(64,)),
        [row("barrier", "shm", 0, 1e-5)],
        [row("all_reduce", "shm", 4096, 1e-5)],
        [row("a$^{", "b\n$_{" * 20, 4096, 1e-5)],
        rows(sizes=[1 << k for k in range(10, 29)]),
    ],
    ids=["plain", "two-worlds", "one-size", "barrier-only", "no-limit", "hostile-names", "many-sizes"],
)
def test_whatever_was_measured_is_drawn(given, tmp_path):
    """A small file, with all texts inside and none over another but at points that stand close together."""
    path = tmp_path / "timings.svg"
    draw_section(timing_section(given), path)
    tree = tree_of(path)
    assert 500 < float(tree.get("width")) < 1200
    assert 300 < float(tree.get("height")) < 2000
    assert path.stat().st_size < 300_000
    if given[0]["collective"] != "barrier":  # whose labels stand beside equal points
        check_texts(tree)


def test_lines_and_limit():
    """A chart for each collective and world, a line for each transport with the medians, and memcpy's line in each."""
    drawn = charts(rows(ranks=(2, 4)))
    assert list(drawn) == [f"{name}, {n} ranks" for n in (2, 4) for name in ("all_reduce", "all_gather", "barrier")]
    first = drawn["all_reduce, 2 ranks"]
    assert {node.text for node in kinds(first, "text", "name")} == {"shm", "gloo", "torch", "memcpy (limit)"}
    tips = [node.text for node in kinds(first, "text", "tip") if node.text.startswith("shm")]
    expected = [found for found in rows() if (found["transport"], found["collective"]) == ("shm", "all_reduce")]
    assert tips == [f"shm: {spell_seconds(one['median_s'])} at {spell_bytes(one['bytes'])}" for one in expected]
    for name, lines in (("all_reduce, 2 ranks", 3), ("all_gather, 4 ranks", 2), ("barrier, 2 ranks", 3)):
        found = kinds(drawn[name], "polyline", "line")
        limits = [node for node in found if "limit" in node.get("class")]
        assert len(limits) == (0 if name.startswith("barrier") else 1)
        assert len(found) - len(limits) == lines  # names stand beside the lines


def test_all_charts_have_one_scale():
    """They can be compared by eye, and nothing measured lies outside."""
    for tree in (drawn := charts(rows())).values():
        marks = [(node.text, node.get("y")) for node in tree.iter("text") if node.get("text-anchor") == "end"][:4]
        assert (
            marks
            == [
                (node.text, node.get("y"))
                for node in drawn["all_reduce, 2 ranks"].iter("text")
                if node.get("text-anchor") == "end"
            ][:4]
        )
        ends = [float(node.get("points").split()[0].split(",")[1]) for node in kinds(tree, "polyline", "grid")]
        spots = [float(node.get("cy")) for node in kinds(tree, "circle", "dot")]
        assert all(14 <= spot <= HEIGHT - 42 for spot in spots)
        assert len(ends) > 2


def test_labels_do_not_overlap():
    """However close sizes are, the labels of an axis do not touch, and none leaves the chart."""
    for sizes in ((4096, 65536, 1 << 20), [1 << k for k in range(10, 29)], (1000, 1001, 1002, 1 << 28), (4096, 4097)):
        check_texts(charts(rows(sizes=sizes))["all_reduce, 2 ranks"])


def test_nothing_measured_is_refused():
    """No rows, or the limit alone, make no picture."""
    for given in ([], [row("memcpy", "memory", 4096, 1e-5)]):
        with pytest.raises(ConfigError, match="expected measured collectives"):
            timing_section(given)


def test_strategies_side_by_side(tmp_path):
    """Four charts with a bar each; the same rows, the same bytes; no rows are refused."""
    found = [strategy("exact"), strategy("ps", bytes_per_step=0, samples_per_s=None, metrics={})]
    for name in ("a.svg", "b.svg"):
        draw_section(strategies_section(found, "digits"), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    tree = tree_of(tmp_path / "a.svg")
    check_texts(tree)
    assert len(list(tree.iter("svg"))) == 5
    assert [node.text for node in kinds(tree, "text", "tip")][:1] == ["exact, samples a second: 1,234"]
    with pytest.raises(ConfigError, match="got none"):
        strategies_section([], "")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KB"),
        (4224, "4.12 KB"),
        (1 << 20, "1 MB"),
        (3 << 30, "3 GB"),
    ],
)
def test_bytes_in_words(count, text):
    """Powers of 1024, three digits."""
    assert spell_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (1.25e-5, "12.5 µs"), (9.99e-4, "999 µs"), (9.999e-4, "1 ms"), (0.25, "250 ms"), (1.0, "1 s")],
)
def test_seconds_in_words(seconds, text):
    """The unit that keeps three digits readable."""
    assert spell_seconds(seconds) == text


def test_strategies_are_shown_beside_ddp():
    """Speed and memory from 0, accuracy as a difference in points; without ddp as they are."""
    found = [strategy("ddp"), strategy("exact", peak_memory_bytes=270 << 20, metrics={"test_accuracy": 0.95})]
    section = strategies_section(found, "digits")
    titles = [chart.title for chart in section.charts]
    assert titles == [
        "samples a second; more is better", "peak memory of a process, MB; less is better",
        "test accuracy, %; more is better, beside ddp's 90",
    ]  # fmt: skip
    assert ">270 (0.9x)<" in section.charts[1].drawing.svg()
    assert ">+5 points<" in section.charts[2].drawing.svg()
    assert all(chart.finding for chart in section.charts)
    assert section.charts[1].finding == "Least: exact (270). Most: ddp (300)."
    for place in (1, 2):  # less memory is better, and so is more accuracy
        assert 'rect class="fill c2"' in section.charts[place].drawing.svg()
        assert 'rect class="fill c5"' not in section.charts[place].drawing.svg()
    worse = strategies_section([found[0], strategy("ps", metrics={"test_accuracy": 0.8})], "digits")
    assert 'rect class="fill c5"' in worse.charts[-1].drawing.svg()
    assert section.charts[1].values.rows[1] == ["exact", "270", "-10%"]
    assert section.title == "digits: ddp is the fastest, with 1,234 samples a second; exact has 1,234"
    faster = strategies_section([found[0], strategy("ps_async", samples_per_s=2468)], "digits")
    assert faster.title == "digits: ps_async is the fastest, 2 times as fast as ddp"
    slower = strategies_section(
        [*found[:1], strategy("exact", samples_per_s=617.25), strategy("dp", samples_per_s=2469.0)], "d"
    )
    assert slower.title == "d: exact (8 replicas) is 0.5 times as fast as ddp (2); dp, the fastest, 2 times"
    speed = slower.charts[0].drawing.svg()
    assert 'style="font-weight:600">exact</text>' in speed
    lengths = [float(node.get("width")) for node in kinds(tree_of(speed), "rect", "fill")]
    assert lengths == pytest.approx(
        [lengths[0] * share for share in (1, 0.5, 2)], abs=0.2
    )  # from 0: no length deceives
    assert [node.text for node in kinds(tree_of(speed), "text", "tick") if node.get("text-anchor") is None] == [
        "1,234",
        "617.2 (0.5x)",
        "2,469 (2x)",
    ]
    alone = strategies_section(found[1:], "digits")
    assert "beside" not in "".join(chart.title for chart in alone.charts)
    assert len(alone.charts) == 4


def test_a_few_samples_are_no_better_and_no_worse():
    """One image of 360 more or less has no bar, neither green nor orange: a sentence says from where to where."""
    found = [strategy("ddp"), strategy("exact", metrics={"test_accuracy": 0.8972})]
    section = strategies_section(found, "digits")
    assert [chart.title.partition(";")[0] for chart in section.charts] == ["samples a second"]
    assert section.lines[0].startswith("One run each. Within 3 % of ddp, so without a chart: ")
    assert section.lines[0].endswith("; test accuracy, %: 89.72 to 90.")
    differs = strategies_section([found[0], strategy("ps_async", metrics={"test_accuracy": 0.85})], "digits")
    assert "accuracy" in differs.charts[-1].title and "accuracy" not in differs.lines[0]
