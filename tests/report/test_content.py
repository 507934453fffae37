"""What is said of a curve: where it goes, and when it diverges; and where each chart of a run is explained."""

import math
import random
from pathlib import Path

from report.made_runs import make_run
from unisono.report.content import band_of, diverges, mean_of, sample, thin, trend_of
from unisono.report.sources import sections_of

OBSERVE = (Path(__file__).parents[2] / "docs" / "observe.md").read_text()


def test_where_a_loss_goes():
    """Beyond its noise; nothing is said of a few steps or of what is no number."""
    noise = [0.1 * (-1) ** step for step in range(100)]
    for slope, word in ((-0.01, "falling"), (0.01, "rising"), (0.0, "level")):
        assert trend_of([(step, 3 + slope * step + noise[step]) for step in range(100)]) == word
    assert trend_of([(step, 1.0) for step in range(19)]) == ""
    assert trend_of([(step, math.nan) for step in range(99)]) == ""
    assert diverges([(1, 1.0), (2, math.inf)])
    assert not diverges([(1, 1.0), (2, 1.4)])
    assert not diverges([(1, -3.0), (2, -1.0)])  # a log-likelihood has no such bound
    assert not diverges([])


def test_each_chart_of_a_run_is_explained(tmp_path):
    """docs/observe.md has a row for each, and no row for a chart that there is not."""
    _, sections = sections_of([make_run(tmp_path / "run", launches=((1, 30), (31, 60)))])
    titles = {chart.title for section in sections for chart in section.charts}
    rows = [line for line in OBSERVE.partition("## The report\n")[2].partition("\n## ")[0].splitlines() if "| " in line]
    told = {row.partition("**")[2].partition("**")[0] for row in rows if "**" in row.split("|")[1]}
    assert titles == told
    assert len(titles) == 5


def test_long_lines_show_how_far_values_reach():
    """Of each stretch the lowest and the highest, both ends and the outlier; no more points than there is room for."""
    points = [(float(x), math.sin(x * x)) for x in range(10_000)]
    points[777], points[4] = (777.0, 50.0), (4.0, math.nan)
    kept, width = thin(points, 100)
    assert (kept[0], kept[-1], len(kept) <= 100) == (points[0], points[-1], True)
    assert (777.0, 50.0) in kept and kept == sorted(kept)
    inner = [point for point in points if math.isfinite(point[1])][1:-1]
    for first in range(0, len(inner), width):
        part = [value for _, value in inner[first : first + width]]
        assert {min(part), max(part)} <= {value for _, value in kept}
    assert thin(points[:3], 100) == (points[:3], 1)
    assert thin([(1.0, math.inf)], 10) == ([], 1)


def test_a_sample_has_the_distribution_of_all():
    """Of skewed noise 37 % lie above the mean: of the steps, and of those that are drawn."""
    draw = random.Random(0)
    points = [(float(step), draw.expovariate(1.0)) for step in range(3680)]
    kept = sample(points, 160)
    assert (kept[0], kept[-1], 100 < len(kept) <= 160) == (points[0], points[-1], True)
    shares = [sum(value > 1.0 for _, value in some) / len(some) for some in (points, kept)]
    assert abs(shares[0] - math.exp(-1)) < 0.03 and abs(shares[1] - shares[0]) < 0.1
    means = dict(mean_of(points)[0])
    assert all(means[x] == y for x, y in sample([*means.items()], 160))
    assert [sample(points[:few], 160) for few in (0, 1, 160)] == [points[:few] for few in (0, 1, 160)]


def test_a_band_says_what_it_holds():
    """All but the ends that are left out; where too few lie in a stretch to leave one out, all of them."""
    points = [(float(x), float(x % 20)) for x in range(1, 401)]
    whole, middle = band_of("each", points, 20, 0), band_of("each", points, 20, 0, left_out=0.1)
    assert (whole.name, {*whole.band}) == ("lowest and highest of 20 steps", {(0.0, 19.0)})
    assert (middle.name, {*middle.band}) == ("the middle 80% of 20 steps", {(2.0, 17.0)})
    assert band_of("each", points, 200, 0, left_out=0.1).name == "lowest and highest of 2 steps"
    assert band_of("each", points, 400, 0).points == points
    assert (whole.points[0][0], whole.points[-1][0]) == (1.0, 400.0)
