"""Pictures of schedules: readable sizes, no text outside, whatever the title."""

import subprocess
import sys

import pytest
from PIL import Image

from unisono.collectives.schedules import SCHEDULES, plan, start, states
from unisono.errors import ConfigError
from unisono.report import schedule_picture
from unisono.report.canvas import WIDTH, printable
from unisono.report.schedule_picture import Content, draw_schedule, order_notes

# Small for every number of ranks, and every schedule once.
CASES = [*(("tree", n) for n in range(1, 9)), *((name, 3) for name in SCHEDULES), ("ring", 8), ("owner-computes", 8)]
QUICK = [("tree", 1), ("ring", 3), ("owner-computes", 3)]
"""The test of texts below draws every schedule for three ranks, too."""
HOSTILE = [
    "",
    "$x^{",
    r"$\frac{1}{0}$ \unknown",
    "x" * 10_000,
    "<b>&amp;</b> %s {0} {title} line\nline\r\n\ttab \0\a\x1b[31m \U0001f3bb \u4e00\u4e01 \u202e rtl \ud800",
]


def colours(path):
    """Return the picture's size and its colours."""
    with Image.open(path) as image:
        assert image.format == "PNG"
        image.load()
        return image.size, {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}


def played(name, n):
    """Return a schedule and what its ranks hold at the end, as the picture knows it."""
    schedule = plan(name, n)
    own = start(schedule, lambda rank, chunk: Content(frozenset([rank]), str(rank)))
    return schedule, [*states(schedule, own, lambda left, right: left + right)][-1]


@pytest.mark.parametrize(
    ("name", "n"),
    [
        pytest.param(name, n, marks=[] if (name, n) in QUICK else [pytest.mark.slow], id=f"{name}-{n}")
        for name, n in CASES
    ],
)
def test_a_png_of_sensible_size(name, n, tmp_path):
    """Every schedule gives a PNG, 1200 pixels wide, not empty, no taller than its rounds need, and small."""
    path = tmp_path / "picture.png"
    draw_schedule(plan(name, n), f"{name} on {n} ranks", path)
    (width, height), found = colours(path)
    assert width == WIDTH
    assert 200 <= height <= 400 + len(plan(name, n).rounds) * 300
    assert len(found) > 20
    assert path.stat().st_size < 300_000


@pytest.mark.parametrize("title", HOSTILE, ids=range(len(HOSTILE)))
def test_any_title(title, tmp_path):
    """A title is shown literally: no markup, no control characters, no warning, no second line, cut where too long."""
    draw_schedule(plan("broadcast", 2), title, tmp_path / "picture.png")
    assert colours(tmp_path / "picture.png")[0][0] == WIDTH
    assert printable(title, 17).isprintable()
    assert "\n" not in printable(title, 17)


def test_titles_are_kept_where_they_can_be():
    """Ordinary text, umlauts and dollars stay as they are; what is too wide is cut by its width, not its length."""
    assert printable("2 $ f\u00fcr \u00d7 \u00bd", 17) == "2 $ f\u00fcr \u00d7 \u00bd"
    assert printable("a\nb\0c", 17) == "a b\N{WHITE SQUARE}c"
    wide, narrow = printable("W" * 500, 17), printable("i" * 500, 17)
    assert wide[-1] == narrow[-1] == "\N{HORIZONTAL ELLIPSIS}"
    assert 30 < len(wide) < len(narrow) / 2


@pytest.mark.parametrize("sizes", [(3,), pytest.param((1, 5, 8), marks=pytest.mark.slow)], ids=["three", "others"])
def test_all_text_is_inside_and_none_overlaps(tmp_path, monkeypatch, sizes):
    """In every picture of up to 8 ranks no text leaves the picture or covers another text."""
    figures = []
    monkeypatch.setattr(schedule_picture, "save", lambda figure, path: figures.append(figure))
    for name in SCHEDULES:
        for n in sizes:
            draw_schedule(plan(name, n), "W" * 90, tmp_path / "unused.png")
            figure = figures.pop()
            renderer = figure.canvas.get_renderer()
            boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
            whole = figure.bbox
            assert len(boxes) > 4
            for index, box in enumerate(boxes):
                assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1, (
                    name,
                    n,
                )
                covered = [other for other in boxes[index + 1 :] if box.overlaps(other)]
                assert not covered, (name, n, figure.axes[0].texts[index].get_text())


def test_the_naive_ring_is_marked_and_others_are_not():
    """From 3 ranks on the picture says that the bits differ, and for no other schedule."""
    for name in SCHEDULES:
        for n in range(1, 9):
            notes, are_equal = order_notes(*played(name, n))
            assert are_equal == (name != "naive-ring" or n < 3)
            assert any("DIFFERENT" in note for note in notes) == (not are_equal)


def test_orders_of_addition():
    """The notes spell the canonical tree, and the ring's order for each chunk."""
    assert order_notes(*played("owner-computes", 4))[0] == [
        "Order of addition, on every rank, for every element: (0+1)+(2+3)"
    ]
    assert "on rank 0," in order_notes(*played("reduce", 3))[0][0]
    assert order_notes(*played("ring", 3))[0][1:] == ["a: 0+(1+2)", "b: (0+2)+1", "c: (0+1)+2"]
    assert order_notes(*played("scatter", 3))[0] == []


def test_the_same_picture_twice(tmp_path):
    """A schedule gives the same bytes each time, so that a kept picture changes only with its content."""
    for name in ("a.png", "b.png"):
        draw_schedule(plan("ring", 3), "ring", tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_what_cannot_be_drawn_is_refused(tmp_path):
    """Too many ranks, and a file that cannot be written, are errors of ours."""
    with pytest.raises(ConfigError, match="at most 8 ranks in a picture, got 9"):
        draw_schedule(plan("tree", 9), "", tmp_path / "picture.png")
    for path in (tmp_path, tmp_path / "no" / "picture.png", tmp_path / "nul\0.png"):
        with pytest.raises(ConfigError, match="can be written"):
            draw_schedule(plan("tree", 2), "", path)


def test_drawing_leaves_no_global_state_and_loads_no_torch(tmp_path):
    """Neither pyplot nor torch is loaded to draw, nor matplotlib before something is drawn."""
    program = f"""
import sys
from unisono.collectives.schedules import plan
from unisono.report.schedule_picture import draw_schedule
from unisono.report import timing_picture
assert "matplotlib" not in sys.modules and "PIL" not in sys.modules
draw_schedule(plan("broadcast", 2), "title", {str(tmp_path / "picture.png")!r})
print([name for name in ("torch", "matplotlib.pyplot") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
