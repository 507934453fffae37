"""Pictures of timings: one panel a collective, one line a transport, the limit in each, and words for numbers."""

import itertools

import pytest
from PIL import Image

from unisono.errors import ConfigError
from unisono.report import timing_picture
from unisono.report.timing_picture import draw_timings
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


@pytest.fixture
def figure(monkeypatch):
    """Return a function that draws and gives the figure instead of a file."""
    figures = []
    monkeypatch.setattr(timing_picture, "save", lambda made, path: figures.append(made))

    def draw(given):
        draw_timings(given, "unused.png")
        return figures[-1]

    return draw


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(rows(), marks=pytest.mark.slow),
        rows(ranks=(2, 4)),
        pytest.param(rows(sizes=(64,)), marks=pytest.mark.slow),
        [row("barrier", "shm", 0, 1e-5)],
        [row("all_reduce", "shm", 4096, 1e-5)],
        [row("a$^{", "b\n$_{" * 20, 4096, 1e-5)],
        pytest.param(rows(sizes=[1 << k for k in range(10, 29)]), marks=pytest.mark.slow),
    ],
    ids=["plain", "two-worlds", "one-size", "barrier-only", "no-limit", "hostile-names", "many-sizes"],
)
def test_a_png_of_sensible_size(given, tmp_path):
    """Whatever was measured gives a PNG, 1200 pixels wide."""
    path = tmp_path / "timings.png"
    draw_timings(given, path)
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        assert image.size[0] == 1200
        assert 400 < image.size[1] < 2000
    assert path.stat().st_size < 300_000


def test_panels_lines_and_limit(figure):
    """A panel for each collective and world, a line for each transport with the medians, and memcpy's line in each."""
    drawn = figure(rows(ranks=(2, 4)))
    titles = [axes.get_title(loc="left") for axes in drawn.axes]
    assert titles == [f"{name}, {count} ranks" for count in (2, 4) for name in ("all_reduce", "all_gather", "barrier")]
    first = drawn.axes[0]
    assert (first.get_xscale(), first.get_yscale()) == ("log", "log")
    lines = [list(line.get_ydata()) for line in first.get_lines()]
    assert lines[0] == [found["median_s"] for found in rows() if found["transport"] == "shm" and found["bytes"]][0:5:2]
    assert lines[3] == [found["median_s"] for found in rows() if found["collective"] == "memcpy"]
    assert len(lines) == 4
    assert len(drawn.axes[1].get_lines()) == 3
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["shm", "gloo", "torch", "memcpy (limit)"]


def test_all_panels_have_one_scale(figure):
    """Panels can be compared by eye, and nothing measured lies outside."""
    drawn = figure(rows())
    assert len({axes.get_ylim() for axes in drawn.axes}) == 1
    low, high = drawn.axes[0].get_ylim()
    assert low < min(found["q1_s"] for found in rows())
    assert high > max(found["q3_s"] for found in rows())


def test_labels_do_not_overlap(figure):
    """However close sizes are, the labels of an axis do not touch, and no panel's text leaves the picture."""
    for sizes in ((4096, 65536, 1 << 20), [1 << k for k in range(10, 29)], (1000, 1001, 1002, 1 << 28), (4096, 4097)):
        drawn = figure(rows(sizes=sizes))
        drawn.canvas.draw()
        for axes in drawn.axes:
            boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
            assert boxes
            assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes)), sizes
            assert all(box.x0 >= 0 and box.x1 <= drawn.bbox.x1 for box in boxes)


def test_nothing_measured_is_refused(tmp_path):
    """No rows, or the limit alone, make no picture."""
    for given in ([], [row("memcpy", "memory", 4096, 1e-5)]):
        with pytest.raises(ConfigError, match="expected measured collectives"):
            draw_timings(given, tmp_path / "timings.png")


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
