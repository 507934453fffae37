"""What a run has come to, as a dictionary that notebooks show."""

import json

import pytest

from unisono.errors import DataError
from unisono.observe.result import Result, html_table


def test_a_result_is_a_dictionary_and_a_table(tmp_path):
    """It is read from a run directory, compares and is stored as a dictionary, and shows its metrics as rows."""
    content = {"fingerprint": "ab" * 32, "metrics": {"test_<loss>": 0.123456}, "steps": 1690, "totals": {"launches": 2}}
    (tmp_path / "result.json").write_text(json.dumps(content))
    result = Result.read(tmp_path)
    assert result == content
    assert json.loads(json.dumps(result)) == content
    shown = result._repr_html_()
    for words in ("ab" * 32, "test_&lt;loss&gt;", ">0.1235<", ">1,690<"):
        assert words in shown
    assert "totals" not in shown
    assert "No result yet" in Result()._repr_html_()


def test_a_run_without_an_end_is_refused(tmp_path):
    """The message says what was looked for, and what to do."""
    with pytest.raises(DataError, match=r"expected .*result\.json.*found nothing.*Hint: start the run again with out="):
        Result.read(tmp_path)


def test_what_is_shown_is_escaped():
    """A value cannot become a part of the page."""
    assert "<script>" not in html_table("<script>", [("<script>", "<script>")])
