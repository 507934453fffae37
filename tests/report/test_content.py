"""What is said of a curve: where it goes, and when it diverges; and where each chart of a run is explained."""

import math
from pathlib import Path

from report.made_runs import make_run
from unisono.report.content import diverges, trend_of
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
