"""Pictures of sections: drawn, equal for equal numbers, readable, with colours that say what they should."""

import re

import pytest

from cli.test_forecast import told
from report.drawn import check_texts, kinds, tree_of
from report.made_runs import HOSTILE
from scaling.made import study, trial
from unisono.errors import ConfigError
from unisono.report.content import Section
from unisono.report.forecast_section import forecast_section
from unisono.report.picture import draw_section
from unisono.report.scaling_section import scaling_sections
from unisono.report.svg import LIGHT


def drawn(made, path):
    draw_section(scaling_sections([made])[0], path, most=4)
    return tree_of(path)


def test_scaling_is_drawn(tmp_path):
    """Lines, bars of phases, efficiency, and red where there are more workers than cores: and only there."""
    crowded, roomy = drawn(study(), tmp_path / "a.svg"), drawn(study(cores=8), tmp_path / "b.svg")
    for tree in (crowded, roomy):
        check_texts(tree)
        assert len(list(tree.iter("svg"))) == 5
        assert {"100%", "80%", "40%"} <= {node.text for node in tree.iter("text")}
        assert kinds(tree, "rect", "fill")
    assert [node.text for node in kinds(crowded, "text", "alarm")] == ["4", "4"]
    assert not kinds(roomy, "text", "alarm")
    shown = " ".join(node.text or "" for node in crowded.iter("text"))
    assert "Shortest on" in shown  # a finding above each chart
    assert "of the ideal." in shown
    assert any("take turns" in (node.text or "") for node in crowded.iter("text"))


def test_a_picture_needs_nothing_else(tmp_path):
    """Its colours are written out, no variable, script or address but the format's own is in it."""
    drawn(study(), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert LIGHT["c0"] in text
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
