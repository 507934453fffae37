"""Pictures of schedules: readable sizes, no text outside, whatever the title."""

import re
import subprocess
import sys

import pytest

from report.drawn import boxes, check_texts, kinds, tree_of
from unisono.collectives.schedules import SCHEDULES, plan, start, states
from unisono.errors import ConfigError
from unisono.report.schedule_picture import WIDTH, Content, draw_schedule, order_notes, picture_of
from unisono.report.svg import cut, width_of

# Small for every number of ranks, and every schedule once.
CASES = [*(("tree", n) for n in range(1, 9)), *((name, 3) for name in SCHEDULES), ("ring", 8), ("owner-computes", 8)]
HOSTILE = [
    "",
    "$x^{",
    r"$\frac{1}{0}$ \unknown",
    "x" * 10_000,
    "<b>&amp;</b> %s {0} {title} line\nline\r\n\ttab \0\a\x1b[31m \U0001f3bb \u4e00\u4e01 \u202e rtl \ud800",
]


def played(name, n):
    """Return a schedule and what its ranks hold at the end, as the picture knows it."""
    schedule = plan(name, n)
    own = start(schedule, lambda rank, chunk: Content(frozenset([rank]), str(rank)))
    return schedule, [*states(schedule, own, lambda left, right: left + right)][-1]


@pytest.mark.parametrize(("name", "n"), CASES)
def test_every_schedule_is_drawn(name, n, tmp_path):
    """As wide as its chunks need, up to four ranks for a phone; no taller than its rounds need, small, all drawn."""
    path, schedule = tmp_path / "picture.svg", plan(name, n)
    draw_schedule(schedule, f"{name} on {n} ranks", path)
    tree = tree_of(path)
    assert WIDTH <= float(tree.get("width")) <= (530 if n <= 4 else 1200)
    assert 200 <= float(tree.get("height")) <= 400 + len(schedule.rounds) * 300
    assert len(kinds(tree, "polyline", "fill")) == sum(map(len, schedule.rounds))  # heads of arrows
    states_shown = (len(schedule.rounds) + 1) * n * schedule.num_chunks
    frames = kinds(tree, "rect", "old") + kinds(tree, "rect", "new")
    assert len(frames) == states_shown + bool(schedule.rounds)
    assert path.stat().st_size < (500_000 if (name, n) == ("ring", 8) else 300_000)  # 14 rounds of 64 chunks


@pytest.mark.parametrize("title", HOSTILE, ids=range(len(HOSTILE)))
def test_any_title(title, tmp_path):
    """A title is shown literally: no markup, no control characters, no second line, cut where too long."""
    draw_schedule(plan("broadcast", 2), title, tmp_path / "picture.svg")
    tree = tree_of(tmp_path / "picture.svg")
    assert {node.tag for node in tree.iter()} <= {"svg", "style", "rect", "text", "polyline"}
    shown = next(tree.iter("text")).text or ""
    assert shown.isprintable()
    kept = cut(title, WIDTH - 16, 21 * 1.2)
    assert shown == "".join(char if char.isprintable() else "\u25a1" for char in kept).replace("\ud800", "?")


def test_titles_are_kept_where_they_can_be():
    """Ordinary text, umlauts and dollars stay as they are; what is too wide is cut by its width, not its length."""
    assert cut("2 $ f\u00fcr \u00d7 \u00bd", WIDTH, 23) == "2 $ f\u00fcr \u00d7 \u00bd"
    assert cut("a\nb  c", WIDTH) == "a b c"
    wide, narrow = cut("W" * 500, 1200, 23), cut("i" * 500, 1200, 23)
    assert wide[-1] == narrow[-1] == "\N{HORIZONTAL ELLIPSIS}"
    assert 30 < len(wide) < len(narrow) / 2
    assert width_of("W" * 10) > width_of("i" * 20)


@pytest.mark.parametrize("n", [1, 3, 5, 8])
def test_all_text_is_inside_and_none_overlaps(n):
    """In every picture of up to 8 ranks no text leaves the picture or covers another text."""
    for name in SCHEDULES:
        check_texts(tree_of(picture_of(plan(name, n), "W" * 90).svg()))


def test_the_check_of_texts_can_fail():
    """The control: a text that is moved onto another one, and one that is moved outside."""
    for x in ("8.0", "490.0"):
        tree = tree_of(picture_of(plan("ring", 3), "ring").svg())
        texts = [node for node in tree.iter("text") if node.text.startswith("Each rank sends")]
        texts[0].set("x", x)
        texts[0].set("y", "32.0")
        with pytest.raises(AssertionError):
            check_texts(tree)
    assert boxes(tree, 16)


def test_arrows_point_from_source_to_target():
    """The ring's arrows have their source's colour, go to the right neighbour, and from the last one around."""
    tree = tree_of(picture_of(plan("ring", 3), "ring").svg())
    ends = [(node.get("class"), re.findall(r"[-\d.]+", node.get("points"))) for node in kinds(tree, "polyline", "line")]
    assert len(ends) == 4 * 4  # 3 moves a round, one of them in two parts
    assert {name.split()[1] for name, _ in ends} == {"c0", "c1", "c2"}
    assert all(float(place[2]) > float(place[0]) and float(place[3]) > float(place[1]) for _, place in ends)
    assert all(float(place[0]) >= 0 and float(place[2]) <= WIDTH for _, place in ends)


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
    for name in ("a.svg", "b.svg"):
        draw_schedule(plan("ring", 3), "ring", tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_what_cannot_be_drawn_is_refused(tmp_path):
    """Too many ranks, and a file that cannot be written, are errors of ours."""
    with pytest.raises(ConfigError, match="at most 8 ranks in a picture, got 9"):
        draw_schedule(plan("tree", 9), "", tmp_path / "picture.svg")
    for path in (tmp_path, tmp_path / "no" / "picture.svg", tmp_path / "nul\0.svg"):
        with pytest.raises(ConfigError, match="can be written"):
            draw_schedule(plan("tree", 2), "", path)


def test_drawing_loads_next_to_nothing(tmp_path):
    """Neither torch nor NumPy is needed to draw."""
    program = f"""
import sys
from unisono.collectives.schedules import plan
from unisono.report.schedule_picture import draw_schedule
draw_schedule(plan("broadcast", 2), "title", {str(tmp_path / "picture.svg")!r})
print([name for name in ("torch", "numpy", "PIL", "jinja2") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
