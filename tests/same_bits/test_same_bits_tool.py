"""The comparison of two commits can fail: a bit, a line, a field, a process of the wrong tree, an early end."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from same_bits import trees
from same_bits.__main__ import WIDTH, report
from same_bits.compare import Difference, compare_jobs, fields_that_differ, first_difference
from same_bits.contest import Verdict, at_hand, chosen, play
from same_bits.jobs import JOBS, Job, Launch
from same_bits.material import prepare
from same_bits.programs.train import TRAININGS
from same_bits.trees import Tree, base_tree
from unisono.recipes.catalog import RECIPES
from unisono.strategies.catalog import CATALOG

LINES = [{"step": step, "loss": f"0x1.{step}p+1", "weights": f"{step:016x}", "previous": "00"} for step in range(1, 6)]


def text(lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


def changed(index, **fields):
    return [{**line, **(fields if at == index else {})} for at, line in enumerate(LINES)]


def write(folder, lines=LINES, *, fingerprint="ab", **result):
    """Write what is compared of a run directory."""
    folder.mkdir(parents=True)
    (folder / "ledger.jsonl").write_text(text(lines))
    (folder / "score.json").write_text(json.dumps({"seed": 0}))
    (folder / "result.json").write_text(json.dumps({"fingerprint": fingerprint, "steps": len(lines), **result}))
    return folder


def test_equal_lines_have_no_difference():
    """The same text twice, and two empty ones."""
    assert first_difference(text(LINES), text(LINES)) is None
    assert first_difference("", "") is None


def test_the_first_step_is_named_and_its_causes_come_first():
    """Weights, then loss, then the hash of what came before, whatever the order in the file; no later step."""
    present = changed(2, previous="11", loss="0x0p+0", weights="ffff")
    present[4]["loss"] = "0x0p+0"
    step, fields = first_difference(text(LINES), text(present))
    assert step == 3
    assert [name for name, *_ in fields] == ["weights", "loss", "previous"]
    assert fields[0] == ("weights", f'"{3:016x}"', '"ffff"')


def test_a_line_too_few_is_a_difference():
    """A run that ends early differs at the first step it has not done."""
    assert first_difference(text(LINES), text(LINES[:3])) == (4, [("line", "there", "absent")])
    assert first_difference(text(LINES[:1]), text(LINES)) == (2, [("line", "absent", "there")])


@pytest.mark.parametrize(
    ("base", "present", "name"),
    [
        ({"values": {"loss": 0.0}}, {"values": {"loss": -0.0}}, "values.loss"),
        ({"steps": 1}, {"steps": 1.0}, "steps"),
        ({"losses": ["a", "b"]}, {"losses": ["a", "c"]}, "losses.1"),
        ({"losses": ["a"]}, {"losses": []}, "losses"),
        ({"clip": None}, {"clip": "null"}, "clip"),
        ({}, {"new": 1}, "new"),
    ],
)
def test_every_bit_of_a_value_counts(base, present, name):
    """The sign of zero, the kind of a number, an item, null and its spelling, a field on one side only."""
    assert name in [field for field, *_ in fields_that_differ(base, present)]
    assert fields_that_differ(base, base) == fields_that_differ(present, present) == []


def test_times_do_not_count():
    """What ends in seconds or nanoseconds is no bit of the training."""
    assert fields_that_differ({"train_s": 1, "values": {"rate_per_s": 2}}, {"train_s": 3, "values": {}}) == [
        ("values", "absent", "{}")
    ]
    assert fields_that_differ({"a": 1, "train_s": 1, "wait_ns": 5}, {"a": 1, "train_s": 2}) == []


def test_run_directories(tmp_path):
    """Ledger, fingerprint, metrics and score are compared; sizes, times and history of the result are not."""
    base = write(tmp_path / "base" / "a", metrics={"accuracy": 0.5}, wall_s=1, peak_memory_bytes=[5])
    same = write(tmp_path / "same" / "a", metrics={"accuracy": 0.5}, wall_s=2, peak_memory_bytes=[6])
    assert compare_jobs(base.parent, same.parent) == []
    other = write(tmp_path / "other" / "a", changed(1, loss="0x0p+0"), fingerprint="cd", metrics={"accuracy": 0.25})
    found = [str(difference) for difference in compare_jobs(base.parent, other.parent)]
    assert found == [
        'a, step 2: loss: "0x1.2p+1" -> "0x0p+0"',
        'a: result.fingerprint: "ab" -> "cd"',
        "a: result.metrics.accuracy: 0.5 -> 0.25",
    ]
    (same / "score.json").write_text(json.dumps({"seed": 1}))
    assert [difference.field for difference in compare_jobs(base.parent, same.parent)] == ["score.seed"]
    found: list[list[str]] = []
    for folder, modules in ((same, {"0": "ReLU()"}), (base, {"0": "Tanh()"})):  # which an older commit does not write
        (folder / "score.json").write_text(json.dumps({"seed": 0, "modules": modules}))
        found.append([difference.field for difference in compare_jobs(base.parent, same.parent)])
    assert found == [[], ["score.modules.0"]]


def test_what_is_missing_is_no_equality(tmp_path):
    """No run at all, a run on one side, a run without a fingerprint on both: each is a difference."""
    (tmp_path / "nothing").mkdir()
    assert compare_jobs(tmp_path / "nothing", tmp_path / "nothing")
    one, two = write(tmp_path / "one" / "a"), write(tmp_path / "two" / "a")
    write(tmp_path / "two" / "b")
    assert [str(found) for found in compare_jobs(one.parent, two.parent)] == ["b: run directory: absent -> there"]
    (one / "result.json").unlink()
    assert compare_jobs(one, one)


def test_the_first_step_of_all_files_counts(tmp_path):
    """Where the detail parts later than the ledger, the ledger's step is named, and the other way round."""
    sides = [write(tmp_path / side) for side in ("base", "present")]
    for side, steps in zip(sides, ({}, {2: "x", 4: "y"}), strict=True):
        lines = [{"step": step, "gradients": {"0.weight": steps.get(step, "")}} for step in range(1, 6)]
        (side / "detail.jsonl").write_text(text(lines))
    (sides[1] / "ledger.jsonl").write_text(text(changed(2, loss="0x0p+0")))
    assert [(found.step, found.field) for found in compare_jobs(*sides)] == [(2, "gradients.0.weight")]


def test_the_jobs_cover_what_there_is():
    """All recipes and strategies, 1, 2 and 3 workers, a resume on more and one on fewer; at least twelve names."""
    commands = [launch.command for job in JOBS.values() for launch in job.launches]
    assert {command[1] for command in commands if command[0] == "train"} == set(RECIPES)
    trained = {name for command in commands for name in command if name in TRAININGS}
    assert trained == set(TRAININGS)
    assert {TRAININGS[name].strategy for name in trained} == set(CATALOG)
    assert {launch.workers for job in JOBS.values() for launch in job.launches} == {1, 2, 3}
    legs = [[launch.workers for launch in job.launches] for job in JOBS.values() if len(job.launches) > 1]
    assert any(first > then for first, then in legs)
    assert any(first < then for first, then in legs)
    assert len(JOBS) >= 12


def test_without_real_data_nothing_is_left_out(tmp_path):
    """Every job finds files for what it reads, and what is not the real thing is said."""
    paths, said = prepare(tmp_path / "data", tmp_path / "none")
    assert len(said) == 2
    assert all(Path(path).exists() for path in paths.values())
    for job in JOBS.values():
        for launch in at_hand(job, paths).launches:
            assert [word.format(out="out", **paths) for word in launch.command]
    assert len([*(tmp_path / "data").rglob("*_*.txt")]) == 240


def test_the_report_names_every_job_and_where_it_parts():
    """A table with a line a job, below it each run's first difference and what came of it, and what has failed."""
    told = io.StringIO()
    parted = [Difference("adamw", 4, f"weights.{index}", "1", "2") for index in range(9)]
    verdicts = [
        Verdict(name="one", seconds=[1, 2], steps=[5, 5], fingerprints=[["ab" * 32], ["ab" * 32]]),
        Verdict(name="two", seconds=[1, 2], steps=[5, 5], fingerprints=[["ab" * 32], ["cd" * 32]], differences=parted),
        Verdict(name="three", seconds=[1, 2], steps=[5, 0], fingerprints=[["ab" * 32], []], failures=["base: [x] no"]),
    ]
    report(Console(file=told, width=WIDTH), verdicts)
    lines = [" ".join(line.split()) for line in told.getvalue().splitlines()]
    assert lines[1:4] == [
        "one equal 5 abababab same 1.0 + 2.0",
        "two DIFFERENT 5 abababab cdcdcdcd 1.0 + 2.0",
        "three FAILED 0/5 abababab 1.0 + 2.0",
    ]
    first = "two: adamw, step 4: weights.0: 1 -> 2; then weights.1, weights.2, weights.3, weights.4, ..."
    assert lines[4:] == [first, "three: base: [x] no"]


def test_an_unknown_job_is_refused():
    """The names there are stand beside it."""
    assert list(chosen([])) == list(JOBS)
    assert list(chosen(["ddp-2-workers"])) == ["ddp-2-workers"]
    with pytest.raises(ValueError, match=r"no job nonsense\. There are: digits-2-workers, "):
        chosen(["nonsense"])


def test_a_process_of_the_other_tree_ends(tmp_path):
    """Not what is installed decides, nor what comes first on the path: the tree that was asked for, or none."""
    package = tmp_path / "src" / "unisono"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    seen = tmp_path / "seen"

    def start(tree, path):
        environment = tree.environment(seen, tmp_path)
        environment["PYTHONPATH"] = os.pathsep.join([str(trees.GUARD), *path])
        program = "import unisono; print(unisono.__file__)"
        return subprocess.run(
            [sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True, check=False
        )

    asked = Tree(name="base", source=tmp_path / "src", words="")
    right = start(asked, [str(asked.source)])
    assert right.stdout == f"{package / '__init__.py'}\n", right.stderr
    assert seen.read_text().endswith(f" {package}\n")
    wrong = start(asked, [])  # the one that is installed
    assert (wrong.returncode, wrong.stdout) == (3, "")
    assert f"expected unisono of {package}, got that of " in wrong.stderr


def test_processes_that_said_nothing_are_missed(tmp_path):
    """A launcher and two workers are three processes; two, or one of elsewhere, are not enough."""
    tree, seen = Tree(name="base", source=tmp_path, words=""), tmp_path / "seen"
    home = tmp_path / "unisono"
    seen.write_text(f"1 {home}\n2 {home}\n2 {home}\n")
    assert trees._check_homes(tree, seen, 1) == ""
    assert trees._check_homes(tree, seen, 2) == "2 of 3 processes have said where their unisono comes from"
    seen.write_text(f"1 {home}\n2 {home}\n3 /elsewhere/unisono\n")
    assert trees._check_homes(tree, seen, 2) == "unisono came from /elsewhere/unisono"


def test_a_commit_is_checked_out_and_leaves_nothing(tmp_path):
    """The base is the commit's own sources; afterwards neither its files nor git's note of them are there."""
    if not (trees.ROOT / ".git").exists():
        pytest.skip("these sources are no git checkout")
    with base_tree("HEAD", tmp_path / "base") as tree:
        assert (tree.source / "unisono" / "__init__.py").is_file()
        assert str(tmp_path) in trees._git("worktree", "list")
    assert not (tmp_path / "base").exists()
    assert str(tmp_path) not in trees._git("worktree", "list")
    with pytest.raises(ValueError, match="nonsense"), base_tree("nonsense", tmp_path / "base"):
        pass


@pytest.mark.slow
def test_a_flipped_bit_is_found_and_named(tmp_path):
    """The control: one bit of one weight, after step 3, shows at step 4; without it a tree is equal to itself."""
    sides = [Tree(name=name, source=trees.ROOT / "src", words="") for name in ("base", "present")]
    whole = Job(launches=JOBS["resume-3-then-1"].launches[1:], steps=10)  # in one go, on one worker
    equal = play("equal", whole, sides, tmp_path, {})
    assert equal.is_equal, (equal.failures, equal.differences)
    assert equal.steps == [10, 10]
    planted = play("planted", whole, sides, tmp_path, {}, planted="present")
    assert not planted.failures
    assert not planted.is_equal
    named = [(found.run, found.step, found.field) for found in planted.differences[:2]]
    assert named == [("adamw", 4, "weights"), ("adamw", 4, "weights.0.weight")]
    assert "result.fingerprint" in [difference.field for difference in planted.differences]


@pytest.mark.slow
def test_a_job_that_fails_alike_in_both_trees_is_not_equal(tmp_path):
    """A refused option, a training that ends early: what was said is handed on, and nothing is compared."""
    sides = [Tree(name=name, source=trees.ROOT / "src", words="") for name in ("base", "present")]
    (whole,) = JOBS["exact-1-worker"].launches
    refused = Job(launches=(Launch(workers=1, command=(*whole.command, "--nonsense")),), steps=20)
    verdict = play("refused", refused, sides, tmp_path, {})
    assert [failure.partition(":")[0] for failure in verdict.failures] == ["base", "present"]
    assert "--nonsense" in verdict.failures[0]
    shorter = play("shorter", Job(launches=JOBS["resume-fsdp-1-then-2"].launches[:1], steps=10), sides, tmp_path, {})
    assert shorter.failures == [f"{tree.name}: expected 10 steps, found 5" for tree in sides]
