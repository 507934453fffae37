"""``unisono report``: pages and time lines of what is there; exit code 2 and no file for what is not."""

import os
import re

from click.testing import CliRunner

from report.made_runs import make_run, write_study
from scaling.made import study
from unisono.cli.main import unisono


def asked(*arguments):
    return CliRunner().invoke(unisono, ["report", *map(str, arguments)])


def test_a_page_is_written(tmp_path):
    """Of a run and of a directory with a scaling study; twice is no error."""
    run, kept = make_run(tmp_path / "run"), tmp_path / "kept"
    kept.mkdir()
    write_study(kept / "scaling.json", study())
    for is_there in (False, True):
        done = asked(run, kept, "-o", tmp_path / "r.html")
        assert done.exit_code == 0, done.output
        assert ("KB, in place of an earlier report)" in done.stderr) is is_there
    page = (tmp_path / "r.html").read_text()
    assert "Run run" in page
    assert "Strong scaling, exact: " in page
    assert "KB" in done.stderr


def test_a_folder_of_runs(tmp_path):
    """Its runs are compared, the 8 newest of more; what lies deeper is left alone."""
    for number in range(9):
        path = make_run(tmp_path / "runs" / f"run-{number}", steps=5, launches=((1, 5),))
        os.utime(path / "score.json", (1e9 - number, 1e9 - number))
    make_run(tmp_path / "runs" / "run-0" / "deeper", steps=5, launches=((1, 5),))
    done = asked(tmp_path / "runs", "-o", tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    assert f"{tmp_path / 'runs'} holds 9 runs, of which the 8 newest are shown\n" in done.stderr
    page = (tmp_path / "r.html").read_text()
    assert re.findall(r"<h2[^>]*>Run (.*?)</h2>", page) == [f"run-{number}" for number in range(8)]


def test_a_folder_with_a_damaged_run(tmp_path):
    """The others are shown, and why it is not; asked for by name, or where there is no other, that is an error."""
    bad, _ = (make_run(tmp_path / "runs" / name, steps=5, launches=((1, 5),)) for name in ("bad", "good"))
    (bad / "score.json").write_text("{")
    done = asked(tmp_path / "runs", "-o", tmp_path / "r.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "r.html").read_text()
    assert re.findall(r"<h2[^>]*>Run (.*?)</h2>", page) == ["good", "bad"]
    assert "It is not shown: " in page and "Hint: put back a copy of it" in page
    assert asked(tmp_path / "runs", bad, "-o", tmp_path / "s.html").exit_code == 2
    (tmp_path / "runs" / "good" / "score.json").write_text("{")
    assert asked(tmp_path / "runs", "-o", tmp_path / "s.html").exit_code == 2


def test_a_timeline_is_written(tmp_path):
    """Of one run, and no page."""
    done = asked(make_run(tmp_path / "run"), "--timeline", tmp_path / "t.json")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "t.json").exists()
    for extra in (("-o", tmp_path / "r.html"), (tmp_path / "run",)):
        done = asked(tmp_path / "run", *extra, "--timeline", tmp_path / "u.json")
        assert done.exit_code == 2
        assert not (tmp_path / "u.json").exists()


def test_what_is_not_there_is_said(tmp_path):
    """Exit code 2, the hint, and no file."""
    for source in (tmp_path / "nothing", tmp_path):
        done = asked(source, "-o", tmp_path / "r.html")
        assert done.exit_code == 2
        assert "expected a run directory" in done.output
    assert not (tmp_path / "r.html").exists()
    assert asked("-o", tmp_path / "r.html").exit_code == 2


def test_a_name_promises_no_other_format(tmp_path):
    """A picture or a PDF is refused before anything is written, with the name to use."""
    run = make_run(tmp_path / "run")
    for option, name, meant in (
        ("--timeline", "t.svg", "t.json"),
        ("--timeline", "t", "t.json"),
        ("-o", "r.pdf", "r.html"),
    ):
        done = asked(run, option, tmp_path / name)
        assert done.exit_code == 2
        assert f"{tmp_path / meant}." in done.output
        assert not (tmp_path / name).exists()
