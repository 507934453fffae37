"""Sentences that quote a figure say what the records say, on every page."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
NAMES = ("costs", "faults", "recovery", "scaling", "strategies", "why")
QUOTING = ["README.md", *(f"docs/{name}.md" for name in NAMES), "docs/pictures/live.svg"]


@pytest.fixture
def quoted(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import quoted

    return quoted


@pytest.fixture
def pages(tmp_path):
    """A copy of the pages that quote, and of the records."""
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    for page in QUOTING:
        shutil.copy(ROOT / page, tmp_path / page)
    shutil.copytree(BENCHMARKS / "results", tmp_path / "results")
    return tmp_path


def play(pages, *options):
    command = [sys.executable, str(BENCHMARKS / "quoted.py"), "--root", str(pages), "--results", str(pages / "results")]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def test_the_pages_say_what_the_records_say(quoted):
    """As committed; each page that is listed here quotes, and no other."""
    told = list(quoted.quotes(quoted.Records(quoted.RESULTS)))
    assert quoted.put(ROOT, quoted.RESULTS, is_check=True) == []
    assert {page for page, *_ in told} == set(QUOTING)
    assert len(told) > 20


def test_a_changed_number_is_noticed_and_mended(pages):
    """Control: a page that says something else is refused with both sentences, and written anew without --check."""
    page = pages / "README.md"
    right = page.read_text()
    wrong = re.sub(r"at most [0-9.]+ times DDP's", "at most 1.01 times DDP's", right)
    page.write_text(wrong)
    done = play(pages, "--check")
    assert done.returncode == 1
    assert "found 'at most 1.01 times DDP's" in done.stderr.replace('"', "'")
    assert "Hint: make figures" in done.stderr
    assert page.read_text() == wrong
    assert play(pages).returncode == 0
    assert page.read_text() == right


def test_a_changed_record_changes_all_its_sentences(pages):
    """One record, two pages: they cannot contradict each other."""
    record = pages / "results" / "live_missing.json"
    rows = json.loads(record.read_text())
    (row,) = (row for row in rows if row["what"].endswith(": a replacement"))
    row |= {"samples": [4.4], "median": 4.4, "quartiles": None}
    record.write_text(json.dumps(rows))
    assert play(pages).returncode == 0
    for page in ("README.md", "docs/costs.md"):
        assert re.search("joined after 4.4 s", (pages / page).read_text())
    assert "2 again after 4.40 s" in (pages / "docs/pictures/live.svg").read_text()


def test_a_sentence_that_is_gone_is_missed(pages):
    """A page that was rewritten has to say so in benchmarks/quoted.py."""
    page = pages / "docs" / "scaling.md"
    page.write_text(page.read_text().replace("times as fast on 2 cores", "times as quick on 2 cores"))
    done = play(pages)
    assert done.returncode == 1
    assert "docs/scaling.md: expected the sentence" in done.stderr and "benchmarks/quoted.py" in done.stderr


def test_numbers_in_a_sentence(quoted):
    """Line breaks in the page do not matter; a sentence that stands there twice is refused."""
    text, was, now = quoted.filled("a 1,234\nb 5.5. c", "a {:,.0f} b {:.1f}", (2345.6, 7))
    assert (text, was, now) == ("a 2,346\nb 7.0. c", "a 1,234\nb 5.5", "a 2,346\nb 7.0")
    with pytest.raises(quoted.ResultError, match="found it 2 times"):
        quoted.filled("a 1 a 2", "a {:.0f}", (1,))
