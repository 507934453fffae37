"""Charts: well-formed, escaped, within their frame, with every value in reach."""

import itertools
import re
from xml.etree import ElementTree as ET

import pytest

from report.made_runs import HOSTILE
from unisono.report.charts import HEIGHT, Series, Span, line_chart, span_chart, stacked_bars, ticks
from unisono.report.svg import WIDTH, text_of

SPELL = "{:g}".format


def parsed(chart):
    """The chart as a tree; malformed text fails here."""
    return ET.fromstring(f"<x>{chart.svg()}</x>")


def drawn(*series, **more):
    how = {"x_label": "step", "spell_x": SPELL, "spell_y": SPELL} | more
    return line_chart("Loss", series, **how)


def test_every_point_has_its_value():
    """On hover and in the tree; the label is for screen readers."""
    tree = parsed(drawn(Series(name="loss", points=[(1, 3.0), (2, 1.5), (3, 0.25)])))
    tips = [node.text for node in tree.iter("text") if node.get("class") == "tip"]
    assert tips == ["loss: 3 at 1", "loss: 1.5 at 2", "loss: 0.25 at 3"]
    svg = tree.find("svg")
    assert (svg.get("role"), svg.get("aria-label")) == ("img", "Loss")


@pytest.mark.parametrize(
    "points", [[(1, 1.0)], [(1, 5.0), (2, 5.0)], [(1, 0.0), (2, 0.0)], [(1, -3.0), (9, 1e12)], [(1, 1e-12), (2, 3e-12)]]
)
@pytest.mark.parametrize("from_zero", [True, False])
def test_everything_stays_in_the_frame(points, from_zero):
    """One point, equal values, zeros, negative and extreme numbers."""
    tree = parsed(drawn(Series(name="x", points=points), from_zero=from_zero))
    for circle in tree.iter("circle"):
        assert 0 <= float(circle.get("cx")) <= WIDTH
        assert 0 <= float(circle.get("cy")) <= HEIGHT
    assert not re.search(r"nan|inf", "".join(tree.itertext()))


def test_larger_is_higher_and_later_is_further_right():
    """The axes point the right way, in logarithms too."""
    for log_x in (False, True):
        tree = parsed(drawn(Series(name="x", points=[(1, 1.0), (8, 2.0), (64, 4.0)]), log_x=log_x))
        spots = [
            (float(node.get("cx")), float(node.get("cy"))) for node in tree.iter("circle") if "dot" in node.get("class")
        ]
        assert [x for x, _ in spots] == sorted(x for x, _ in spots)
        assert [y for _, y in spots] == sorted((y for _, y in spots), reverse=True)


def test_a_logarithmic_axis_has_round_numbers():
    """Also where nothing round was measured; with ticks at points it has these."""
    line = Series(name="x", points=[(187, 1.0), (955, 2.0), (15649, 4.0)])
    for at_points, expected in (
        (False, ["200", "500", "1000", "2000", "5000", "10000"]),
        (True, ["187", "955", "15649"]),
    ):
        tree = parsed(line_chart("x", [line], x_label="", spell_x="{:.0f}".format, spell_y="y{}".format, log_x=True,
                                 ticks_at_points=at_points))  # fmt: skip
        assert [node.text for node in tree.iter("text") if (node.text or "").isdigit()] == expected


def test_error_bars_reach_from_low_to_high():
    """Below and above their point."""
    tree = parsed(drawn(Series(name="x", points=[(1, 2.0), (2, 3.0)], spread=[(1.0, 3.0), (2.0, 5.0)])))
    bars = [node.get("points").split() for node in tree.iter("polyline") if "error" in node.get("class")]
    dots = [node for node in tree.iter("circle") if "dot" in node.get("class")]
    for bar, dot in zip(bars, dots, strict=True):
        low, high = (float(place.split(",")[1]) for place in bar)
        assert high < float(dot.get("cy")) < low


def test_bars_are_as_long_as_their_values():
    """Parts follow each other without gaps, in proportion."""
    tree = parsed(stacked_bars("Phases", {"rank 0": {"a": 1.0, "b": 3.0}, "rank 1": {"a": 2.0, "b": 0.0}}, spell=SPELL))
    bars = [(float(node.get("x")), float(node.get("width"))) for node in tree.iter("rect")]
    bars = bars[2:]  # the first two are the legend's
    assert len(bars) == 3
    assert bars[1][1] == pytest.approx(3 * bars[0][1], abs=0.2)
    assert bars[1][0] == pytest.approx(bars[0][0] + bars[0][1], abs=0.2)
    assert bars[2][1] == pytest.approx(2 * bars[0][1], abs=0.2)


def test_spans_of_time():
    """A row for each name, at least visible, with its text."""
    spans = [Span(row="training", began=0.0, ended=9.0, kind="training", text="launch 1"),
             Span(row="checkpoint", began=4.0, ended=4.0, kind="checkpoint", text="after step 20")]  # fmt: skip
    tree = parsed(span_chart("Time", spans, spell=SPELL))
    widths = [float(node.get("width")) for node in tree.iter("rect")][2:]  # the first two are the legend's
    assert widths[0] > 300
    assert widths[1] == 2.0
    assert {"launch 1", "after step 20"} <= {node.text for node in tree.iter("text")}


def test_spans_with_colours_of_their_own_say_what_they_are():
    """No legend: a wide span has its label on it, a narrow one has not."""
    spans = [Span(row="training", began=0.0, ended=5.0, kind="training", text="a"),
             Span(row="training", began=5.0, ended=9.0, kind="interrupted", text="b", label="wide"),
             Span(row="saves", began=9.0, ended=9.0, kind="checkpoint", text="c", label="narrow")]  # fmt: skip
    tree = parsed(span_chart("Time", spans, spell=SPELL, colours={"interrupted": "bad", "checkpoint": "c6"}))
    assert [node.get("class") for node in tree.iter("rect")] == ["fill plain", "fill bad", "fill c6"]
    shown = [node.text for node in tree.iter("text") if node.get("class") in ("name", "on")]
    assert shown == ["wide"]


def test_names_at_the_ends_do_not_lie_on_lines():
    """One that ends a little before the others has its name beside theirs; one that ends early has it at its end."""
    ends = {"last": 40, "near": 36, "early": 10}
    tree = parsed(drawn(*(Series(name=name, points=[(1, 1.0), (x, 2.0 + x)]) for name, x in ends.items())))
    places = {node.text: float(node.get("x")) for node in tree.iter("text") if "end" in (node.get("class") or "")}
    assert places["last"] == places["near"] > places["early"] + 100


def test_no_tick_stands_between_two_steps():
    """Three steps have three ticks; what is measured has others, too."""
    ticks_of = {}
    for last in (3, 3.5):
        texts = parsed(drawn(Series(name="a", points=[(1, 1.0), (2, 2.0), (last, 3.0)]))).iter("text")
        ticks_of[last] = [node.text for node in texts if node.get("y") == f"{HEIGHT - 26:.1f}"]
    assert ticks_of == {3: ["1", "2", "3"], 3.5: ["1", "1.5", "2", "2.5", "3", "3.5"]}


def test_logarithms_have_round_marks_and_one_scale():
    """Powers of ten where there are enough of them, else twice and five times as much too; ends as given."""

    def heights(ends, points):
        tree = parsed(drawn(Series(name="x", points=points), log_y=ends))
        marks = [
            node.text for node in tree.iter("text") if node.get("text-anchor") == "end" and node.get("class") == "tick"
        ]
        return marks, [float(node.get("cy")) for node in tree.iter("circle") if "dot" in node.get("class")]

    assert heights((1e-6, 1.0), [(1, 1e-6), (2, 1e-3), (3, 1.0)])[0] == [f"{10.0**k:g}" for k in range(-6, 1)]
    assert heights((1.0, 1e37), [(1, 5.0)])[0] == [f"{10.0**k:g}" for k in range(0, 38, 4)]  # a loss that diverges
    assert heights((1.5, 30), [(1, 2.0)])[0] == ["2", "5", "10", "20"]
    assert heights((0.3, 1.6), [(1, 0.5)])[0] == ["0.3", "0.4", "0.5", "0.7", "1", "1.5"]  # not 0.5 and 1 alone
    _, (low, middle, high) = heights((1e-6, 1.0), [(1, 1e-6), (2, 1e-3), (3, 1.0)])
    assert middle == pytest.approx((low + high) / 2, abs=0.2)
    assert heights((1.0, 100.0), [(1, 10.0)])[1] == heights((1.0, 100.0), [(5, 10.0), (6, 99.0)])[1][:1]


def test_legends_flow_and_points_have_labels():
    """A single line needs no legend; many stand in lines below each other; alarming places are red."""
    one = drawn(Series(name="a", points=[(1, 1.0), (2, 2.0)], labels=["100%", "50%"]), alarms=frozenset({2.0}),
                ticks_at_points=True)  # fmt: skip
    many = drawn(*(Series(name=f"strategy number {n}", points=[(1, 1.0)]) for n in range(12)))
    assert one.height == HEIGHT < many.height
    assert not [node for node in parsed(one).iter("text") if node.get("class") == "name"]
    names = [node for node in parsed(many).iter("text") if node.get("class") == "name"]
    assert len(names) == 12
    assert len({node.get("y") for node in names}) > 2
    assert all(float(node.get("y")) <= many.height for node in names)
    assert [node.text for node in parsed(one).iter("text") if node.get("class") == "alarm"] == ["2"]
    assert {"100%", "50%"} <= {node.text for node in parsed(one).iter("text")}


def test_hostile_text_is_text():
    """Names end up as text in every kind of chart: no element but ours."""
    line = drawn(
        Series(name=HOSTILE, points=[(1, 1.0), (2, 2.0)]), Series(name="b", points=[(1, 1.0)]), x_label=HOSTILE
    )
    bars = stacked_bars(HOSTILE, {HOSTILE: {HOSTILE: 1.0, "b": 2.0}}, spell=lambda _: HOSTILE)
    spans = span_chart(HOSTILE, [Span(row=HOSTILE, began=0, ended=1, kind=HOSTILE, text=HOSTILE)], spell=SPELL)
    for chart in (line, bars, spans):
        found = {node.tag for node in parsed(chart).iter()}
        assert found <= {"x", "svg", "g", "polyline", "circle", "rect", "text", "tspan", "polygon"}
        assert not any(name.startswith("on") for node in parsed(chart).iter() for name in node.attrib)
    assert text_of("a\x00\u202eb\udcff<") == "a\u25a1\u25a1b\u25a1&lt;"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 7.3), (-2, 5), (0.001, 0.0011), (3, 3), (0, 1e9)])
def test_ticks_are_round_and_cover_the_range(low, high):
    """From at or below the least to at or above the largest, few of them."""
    found = ticks(low, high, 5)
    assert found[0] <= low
    assert found[-1] >= high or low == high
    assert 1 <= len(found) <= 9


def test_the_pointer_finds_all_values_at_a_step():
    """Of each line the value there, or the last one before with its step; a band tells both of its ends."""
    tree = parsed(drawn(
        Series(name="loss", points=[(1, 3.0), (2, 2.0), (3, 1.0)]), Series(name="test", points=[(2, 9.0)]),
        Series(name="reach", points=[(1, 4.0), (3, 4.0)], band=[(2.0, 4.0), (0.5, 1.5)], is_pale=True, colour=0),
    ))  # fmt: skip
    tips = ["\n".join(node.itertext()) for node in tree.iter("text") if node.get("class") == "tip"]
    assert tips == [
        "loss: 3 at 1\nreach: 2 to 4",
        "loss: 2 at 2\ntest: 9\nreach: 2 to 4",
        "loss: 1 at 3\ntest: 9 at 2\nreach: 0.5 to 1.5",
    ]
    strips = [node for node in tree.iter("rect") if node.get("class") == "hit"]
    assert len(strips) == 3
    assert all(float(strip.get("height")) > HEIGHT / 2 for strip in strips)


def test_names_stay_above_the_axis():
    """Of lines that end at the bottom, too."""
    lines = [Series(name=name, points=[(1, 1.0), (2, 0.0)]) for name in ("one", "two", "three")]
    names = [node for node in parsed(drawn(*lines)).iter("text") if "end" in (node.get("class") or "")]
    heights = [float(node.get("y")) for node in names]
    assert max(heights) <= HEIGHT - 42 + 4
    assert all(after - before >= 14 for before, after in itertools.pairwise(heights))


def test_a_line_of_another_colour_has_dots_of_it():
    """The colour is that of the line, wherever it stands among the series."""
    tree = parsed(drawn(Series(name="a", points=[(1, 1.0), (2, 2.0)]), Series(name="b", points=[(1, 2.0)], colour=5)))
    assert [node.get("class") for node in tree.iter("circle")] == ["dot c0", "dot c0", "dot c5"]
