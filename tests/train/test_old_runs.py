"""Run directories of earlier versions are read and gone on with; see `old_runs`."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import old_runs
from ranks import run_threads
from unisono.checkpoint import store
from unisono.checkpoint.manifest import _hash
from unisono.cli.main import unisono as command
from unisono.errors import CheckpointError
from unisono.observe.damage import changed_line
from unisono.observe.ledger import read_lines
from unisono.report.comparison.run_diff import compare_runs

KEPT = Path(__file__).parents[1] / "fixtures" / "runs-0.1.0"


@pytest.fixture
def old(tmp_path):
    """Copies that a test may go on with."""
    return shutil.copytree(KEPT, tmp_path / "old")


def result_of(run):
    return json.loads((run / "result.json").read_text())


@pytest.mark.filterwarnings("error")
def test_they_are_gone_on_with(old, tmp_path):
    """Killed or stopped, on another number of ranks: they go on, old lines stay as they are, the chain begins."""
    whole = tmp_path / "whole"
    old_runs.train(None, str(whole))
    for name, first, world_size in (("killed", 7, 1), ("two-workers", 6, 2)):
        run = old / name
        before = (run / "ledger.jsonl").read_bytes().splitlines()[: first - 1]
        there = run_threads(
            lambda transport, out: old_runs.train(transport, out, allow_drift=True), world_size, str(run)
        )
        assert there[0]["done"] == list(range(first, 11))
        lines = (run / "ledger.jsonl").read_bytes().splitlines()
        assert lines[: first - 1] == before
        assert ["previous" in json.loads(line) for line in lines] == [False] * (first - 1) + [True] * (11 - first)
        newest = store.read(store.newest_valid(run / "checkpoints")[0])[0]
        heads = {10: newest.facts.ledger_head}
        assert result_of(run)["ledger_head"] == newest.facts.ledger_head != ""
        assert changed_line(run / "ledger.jsonl", heads) is None
        assert result_of(run)["totals"]["steps"] == 11 - first  # what the old version spent is not known
        # An old line is covered by the first new one.
        (run / "ledger.jsonl").write_bytes(b"\n".join(lines).replace(b'"epoch": 0', b'"epoch": 5', 1) + b"\n")
        assert changed_line(run / "ledger.jsonl", heads).startswith(f"line {first - 1} ")
        (run / "ledger.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        if json.loads((run / "environment.json").read_text())["drifted"]:
            continue  # another machine than the one they were made on: other bits
        assert read_lines(run / "ledger.jsonl") == read_lines(whole / "ledger.jsonl")
        found = compare_runs(run, whole)
        assert (found.step, found.score, found.damage) == (None, [], [])
        assert found.fingerprints[0] == found.fingerprints[1]


@pytest.mark.filterwarnings("error")
def test_a_finished_one_stays_as_it_is(old):
    """There is nothing left to do: the result is that of the launch that trained."""
    run = old / "finished"
    before = (run / "result.json").read_bytes()
    (again,) = run_threads(lambda transport, out: old_runs.train(transport, out, allow_drift=True), 1, str(run))
    assert (again["done"], again["result"]) == ([], json.loads(before))
    assert (run / "result.json").read_bytes() == before


def test_the_tools_read_them(old, tmp_path):
    """Checkpoints are listed and verified, runs are compared and shown."""
    for name in old_runs.RUNS:
        told = CliRunner().invoke(command, ["checkpoint", "verify", str(old / name), "--json"])
        assert (told.exit_code, json.loads(told.stdout)["ledger"]) == (0, None)
    assert compare_runs(old / "finished", KEPT / "finished").equal
    told = CliRunner().invoke(
        command, ["report", str(old / "finished"), str(old / "killed"), "-o", str(tmp_path / "p.html")]
    )
    assert told.exit_code == 0, told.output


@pytest.mark.parametrize("version", [1, 4, 2.0, True, "3", None, [3]])
def test_any_other_version_is_refused(old, version):
    """A manifest of a format that this version does not know is named, with the formats that it reads."""
    _, path = store.list_steps(old / "killed" / "checkpoints")[0]
    content = json.loads((path / "manifest.json").read_text()) | {"format_version": version}
    (path / "manifest.json").write_text(json.dumps(content | {"sha256": _hash(content)}))
    with pytest.raises(CheckpointError, match=r"has format .*, this version of unisono reads 2 and 3\. Hint: "):
        store.read(path)
