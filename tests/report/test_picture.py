"""Pictures of sections: drawn, equal for equal numbers, readable, with colours that say what they should."""

import itertools
import re

import pytest

from cli.test_forecast import told
from report.drawn import check_texts, kinds, tree_of
from report.made_runs import HOSTILE
from scaling.made import study, trial
from unisono.errors import ConfigError
from unisono.report.charts import Series, line_chart
from unisono.report.content import Section
from unisono.report.forecast_section import forecast_section
from unisono.report.picture import draw_section
from unisono.report.scaling_section import scaling_sections
from unisono.report.svg import DARK, LIGHT
from unisono.scaling.study import STEP_PHASES


def drawn(made, path):
    draw_section(scaling_sections([made])[0], path, most=2)
    return tree_of(path)


def test_scaling_is_drawn(tmp_path):
    """Lines, bars of phases, efficiency, and red where there are more workers than cores: and only there."""
    crowded, roomy = drawn(study(), tmp_path / "a.svg"), drawn(study(cores=8), tmp_path / "b.svg")
    for tree in (crowded, roomy):
        check_texts(tree)
        assert len(list(tree.iter("svg"))) == 3
        assert {"1x, 80 ms", "1.6x, 50 ms", "measured", "ideal"} <= {node.text for node in tree.iter("text")}
        assert kinds(tree, "rect", "fill")
    assert [node.text for node in kinds(crowded, "text", "alarm")] == ["4"]
    assert not kinds(roomy, "text", "alarm")
    shown = " ".join(node.text or "" for node in crowded.iter("text"))
    assert "Highest on 2 workers: 1.6x" in shown  # a finding above each chart
    assert "digits: 2 workers are 1.6 times as fast as 1 worker; 4 take turns on 2 cores" in shown
    assert "of the ideal." in shown
    assert "take turns" not in " ".join(node.text or "" for node in roomy.iter("text"))


def test_a_title_says_when_the_machine_was_busy():
    """And how long a step is where there is nothing to compare."""
    assert scaling_sections([study(trial(1, 0.08, load=9.5), trial(2, 0.05))])[0].title == (
        "digits: 2 workers are 1.6 times as fast as 1 worker; the machine was busy"
    )
    assert scaling_sections([study(trial(2, 0.05))])[0].title == "digits: 2 workers, 50 ms a step"


def test_what_a_step_is_made_of_adds_up_to_the_step():
    """Phases are the median rank's; by how much the slowest rank is behind is a part of its own."""
    phases = dict.fromkeys(STEP_PHASES, 0.002)
    bars = scaling_sections([study(trial(2, 0.02, phases_s=[phases, phases]))])[0].charts[1]
    assert bars.values.head[-1] == "slowest rank"
    assert bars.values.rows[0][-1] == "8 ms"
    assert "20 ms" in {node.text for node in tree_of(bars.drawing.svg()).iter("text")}


def test_names_beside_lines_do_not_touch(tmp_path):
    """Three lines that end in one point have their names below each other, each in its line's colour."""
    lines = [Series(name=name, points=[(1, 1.0), (2, 2.0)]) for name in ("one", "two", "three")]
    tree = tree_of(line_chart("x", lines, x_label="x", spell_x="{:g}".format, spell_y="{:g}".format).svg())
    names = kinds(tree, "text", "end")
    assert [node.get("class").split()[-1] for node in names] == ["c0", "c1", "c2"]
    heights = [float(node.get("y")) for node in names]
    assert all(after - before >= 14 for before, after in itertools.pairwise(heights))


def test_a_picture_of_few_charts_is_narrow(tmp_path):
    """One column for up to four, so that its words are 11 pixels high on a phone; more stand two in a row."""
    charts = scaling_sections([study()])[0].charts
    for count, width in ((1, 536), (4, 536), (5, 1088)):
        section = Section(title="x", lines=["a long sentence " * 9], charts=[charts[0]] * count)
        draw_section(section, tmp_path / "a.svg")
        tree = tree_of(tmp_path / "a.svg")
        assert float(tree.get("width")) == width
        check_texts(tree)
        assert not any((node.text or "").endswith("\u2026") for node in tree.iter("text"))  # wrapped, not cut


def test_a_picture_needs_nothing_else(tmp_path):
    """Its colours are written out, no variable, script or address but the format's own is in it."""
    drawn(study(), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert LIGHT["c0"] in text.partition("prefers-color-scheme:dark")[0]
    assert DARK["c0"] in text.partition("prefers-color-scheme:dark")[2]
    assert not re.search(r"var\(|<script|url\(|@import|https?://", text.replace("http://www.w3.org/2000/svg", ""))


def test_equal_numbers_give_equal_bytes(tmp_path):
    """Also with one row, in weak scaling, and with a name from somewhere else, which is shown and no markup."""
    for name in ("a.svg", "b.svg"):
        tree = drawn(study(trial(1, 0.08), weak=True, target=HOSTILE), tmp_path / name)
        assert {node.tag for node in tree.iter()} <= {"svg", "style", "rect", "text", "polyline", "g", "circle"}
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_what_cannot_be_written_is_refused(tmp_path):
    """No directory: an error of ours."""
    with pytest.raises(ConfigError, match="can be written"):
        drawn(study(), tmp_path / "no" / "a.svg")
    assert isinstance(scaling_sections([study()])[0], Section)


@pytest.mark.parametrize("ranks", ["1", "1..65536"])
def test_forecasts_are_drawn(ranks, tmp_path):
    """One number of ranks, and all: efficiency with the ideal, and where a step goes."""
    draw_section(forecast_section(told("--ranks", ranks)), tmp_path / "f.svg")
    tree = tree_of(tmp_path / "f.svg")
    assert len(list(tree.iter("svg"))) == 3
    assert {"ring", "ps-async", "ideal", "communication"} <= {node.text for node in kinds(tree, "text", "name")}
    check_texts(tree)
