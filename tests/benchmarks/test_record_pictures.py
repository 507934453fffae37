"""Pictures that are drawn of the records: the committed ones are those that the programs draw, and say what holds."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


@pytest.fixture
def programs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import accuracy_tables
    import hosts_records
    import results
    import scaling_pictures

    return results, {"scaling": scaling_pictures, "time-to-accuracy": accuracy_tables, "hosts": hosts_records}


@pytest.mark.parametrize("name", ["scaling", "time-to-accuracy", "hosts"])
def test_the_committed_picture_is_what_the_records_give(name, programs, monkeypatch, tmp_path):
    """Byte for byte; nothing is measured."""
    results, drawing = programs
    drawn = tmp_path / f"{name}.svg"
    if name == "hosts":
        monkeypatch.setattr(drawing[name], "PICTURE", drawn)
        drawing[name].draw(results.RESULTS)
    else:
        records = "scaling_pictures" if name == "scaling" else "time_to_accuracy"
        drawing[name].draw(results.read(results.RESULTS / f"{records}.json"), drawn)
    assert drawn.read_bytes() == (PICTURES / f"{name}.svg").read_bytes()


def test_titles_say_what_the_records_say(programs, tmp_path):
    """With other records the titles are others."""
    results, drawing = programs
    rows = results.read(results.RESULTS / "scaling_pictures.json")
    drawing["scaling"].draw([replace(row, ratio=1.2) for row in rows], tmp_path / "a.svg")
    assert "2 workers on 2 cores: 1.2 times as fast" in words(tmp_path / "a.svg")
    rows = results.read(results.RESULTS / "time_to_accuracy.json")
    drawing["time-to-accuracy"].draw([replace(row, ratio=2.0, peer_median=99.0) for row in rows], tmp_path / "b.svg")
    assert "A better recipe: the tutorial with DDP takes 2 times as long" in words(tmp_path / "b.svg")
    assert " 99 s " in words(tmp_path / "b.svg")


def words(picture: Path) -> str:
    return " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text()))


def test_every_picture_is_a_drawing_with_colours_for_dark_pages():
    """No pixels; a terminal is dark already."""
    found = [path for path in PICTURES.rglob("*") if path.is_file()]
    assert {path.suffix for path in found} == {".svg"}
    plain = [path.stem for path in found if "prefers-color-scheme:dark" not in path.read_text()]
    assert plain == ["session"]


def test_every_picture_can_be_read_on_a_phone():
    """Where a picture is 370 pixels wide, its smallest letters are at least 11 pixels high."""
    for path in PICTURES.rglob("*.svg"):
        text = path.read_text()
        wide = float(re.search(r'viewBox="0 0 ([\d.]+) ', text)[1])
        sizes = [float(size) for size in re.findall(r'font-size[=:]"?\s*([\d.]+)', text)]
        assert min(sizes) * 370 / wide >= 11, f"{path.name}: {min(sizes):g} pixels at a width of {wide:g}"
