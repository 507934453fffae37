"""Two runs are compared field by field and step by step, from what they have left."""

import json
from functools import partial

import pytest

from unisono.observe.compare import diff, first_difference, said_now
from unisono.observe.ledger import Entry, Ledger


def entry(step: int) -> Entry:
    return Entry(
        step=step,
        epoch=0,
        num_samples=8,
        samples=f"{step}",
        loss=float(step).hex(),
        gradient=f"{step:016x}",
        weights=f"{step * 3:016x}",
        lr=(0.1).hex(),
        evaluations=2,
    )


def as_line(item: Entry) -> str:
    """Return an entry as it is written, without the chain."""
    return json.dumps({name: value for name, value in item._asdict().items() if value not in ("", ())}) + "\n"


def fill(path, steps):
    ledger = Ledger(path, 0)
    for step in steps:
        ledger.append(partial(entry, step))
    ledger.close()
    return path


def test_equal_ledgers_have_no_difference(tmp_path):
    """Runs that agree to the end part nowhere."""
    left, right = fill(tmp_path / "a.jsonl", range(1, 6)), fill(tmp_path / "b.jsonl", range(1, 6))
    assert first_difference(left, right) is None
    assert first_difference(left, left) is None


@pytest.mark.parametrize("name", [name for name in Entry._fields if name != "step"])
def test_the_first_difference_names_step_and_field(tmp_path, name):
    """Each field counts, and only the first step that differs is told."""
    left, right = fill(tmp_path / "a.jsonl", range(1, 6)), tmp_path / "b.jsonl"
    changed = [entry(step)._replace(**({name: "?"} if step >= 3 else {})) for step in range(1, 6)]
    right.write_text("".join(as_line(item) for item in changed))
    assert first_difference(left, right) == (3, [name])
    assert first_difference(right, left) == (3, [name])


def test_several_fields_are_all_named(tmp_path):
    """All fields that differ at the first step are listed in their order."""
    left, right = fill(tmp_path / "a.jsonl", [1]), tmp_path / "b.jsonl"
    right.write_text(as_line(entry(1)._replace(loss="x", weights="y")))
    assert first_difference(left, right) == (1, ["loss", "weights"])


def test_a_ledger_that_ends_earlier_differs_in_length(tmp_path):
    """The first missing step is where they part, whichever is shorter; an absent ledger is an empty one."""
    long, short = fill(tmp_path / "a.jsonl", range(1, 6)), fill(tmp_path / "b.jsonl", range(1, 4))
    assert first_difference(long, short) == first_difference(short, long) == (4, ["length"])
    assert first_difference(long, tmp_path / "none.jsonl") == (1, ["length"])


def test_a_torn_last_line_counts_as_missing(tmp_path):
    """A line that a crash left incomplete is a step that is not there."""
    left, right = fill(tmp_path / "a.jsonl", range(1, 4)), fill(tmp_path / "b.jsonl", range(1, 4))
    right.write_bytes(right.read_bytes()[:-9])
    assert first_difference(left, right) == (3, ["length"])


def test_scores_are_compared_field_by_field():
    """Each differing field is one line with its path, old and new value, missing ones included; equal ones none."""
    old = {"seed": 0, "data": {"n": 5, "class": "A"}, "gone": 1, "same": [1, {"a": 2}]}
    new = {"seed": 1, "data": {"n": 6, "class": "A"}, "same": [1, {"a": 2}], "come": {"x": 1}}
    assert diff(old, new) == ["seed: 0 -> 1", "data.n: 5 -> 6", "gone: 1 -> None", "come: None -> {'x': 1}"]
    assert diff(old, old) == []
    assert diff({}, {}) == []


def test_lists_of_records_are_compared_one_by_one():
    """Parameter groups, say: the entry that differs is named, not the whole list."""
    old, new = {"groups": [{"lr": 0.1, "m": 0}, {"lr": 1}]}, {"groups": [{"lr": 0.2, "m": 0}, {"lr": 1}]}
    assert diff(old, new) == ["groups[0].lr: 0.1 -> 0.2"]
    assert diff(old, {"groups": [{"lr": 0.1}]}) == ["groups: [{'lr': 0.1, 'm': 0}, {'lr': 1}] -> [{'lr': 0.1}]"]
    assert diff({"milestones": [1, 2]}, {"milestones": [1, 3]}) == ["milestones: [1, 2] -> [1, 3]"]


def test_an_old_score_is_read_in_today_s_words():
    """A precision that a recipe or a strategy told is the run's; settings of a program's own stay what they are."""
    score = {"seed": 0, "strategy": {"name": "exact"}, "settings": {"recipe": "imdb", "lr": 0.1}}
    old = {**score, "settings": {"recipe": "imdb", "bf16": True, "lr": 0.1}}
    assert diff(said_now(old), {**score, "precision": "bf16"}) == []
    assert old["settings"]["bf16"] is True
    ddp = {**score, "strategy": {"name": "ddp", "amp": "fp16", "accumulate": 2}}
    new = {**score, "strategy": {"name": "ddp", "amp": "none", "accumulate": 2}}
    assert diff(said_now(ddp), {**new, "precision": "fp16"}) == []
    for kept in (score, new, {**score, "settings": {"bf16": True}}, {"strategy": None, "settings": None}, {}):
        assert said_now(kept) == kept
