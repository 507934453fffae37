"""The family of forks on a page: who leaves whom, after which step, and what differs."""

import json

import pytest

from report.made_runs import make_run
from unisono.report.page import write_page
from unisono.report.past_sections import family_sections
from unisono.report.run_view import read_run


def make_fork(path, parent, step, **how):
    make_run(path, **how)
    (path / "run.json").write_text(json.dumps({"run": path.name}))
    told = {"parent": f"/runs/{parent}", "run": parent, "step": step, "ledger_head": "00"}
    (path / "fork.json").write_text(json.dumps(told))
    return path


@pytest.fixture
def family(tmp_path):
    """A run, a fork of it, a fork of that, and a fork of a run that is not here; named out of order."""
    root = make_run(tmp_path / "root")
    (root / "run.json").write_text(json.dumps({"run": "root"}))
    slow = make_fork(tmp_path / "slow", "root", 20, more={"lr": 0.5})
    same = make_fork(tmp_path / "same", "slow", 40, more={"lr": 0.5})
    other = make_fork(tmp_path / "other", "gone", 10)
    return [same, other, slow, root]


def test_each_below_its_parent(family):
    """Roots come first, and those whose parents are not here; what differs is said in words."""
    [section] = family_sections([read_run(path) for path in family])
    [chart] = section.charts
    rows = [row[:4] for row in chart.values.rows]
    assert rows == [
        ["other", "/runs/gone, not on this page", "10", "60"],
        ["root", "", "", "60"],
        ["slow", "root", "20", "60"],
        ["same", "slow", "40", "60"],
    ]
    assert [finding.text for finding in section.findings] == [
        "other leaves /runs/gone, not on this page after step 10, and what differs is not known.",
        "slow leaves root after step 20: settings.lr: None -> 0.5.",
        "same leaves slow after step 40: nothing in the score.",
    ]


def test_it_stands_on_the_page(family, tmp_path):
    """In the report of these runs; a report without forks has no such part."""
    write_page(family, tmp_path / "page.html")
    assert "slow leaves root after step 20" in (tmp_path / "page.html").read_text()
    assert family_sections([read_run(family[-1])]) == []
