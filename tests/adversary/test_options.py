"""Command lines drawn by seed: one message and code 2, or on to where the first process would start."""

import io
import os
import random
import subprocess
import sys

import click
import pytest

from adversary.options import Case, Ending, Guard, Reached, commands, describe, draw, is_number, judge, sweep

NO_TRAINING = ("doctor", "checkpoint", "report", "forecast", "launch", "run", "join", "diff", "completion")
"""Verbs whose accepted lines come to their end, or to the first process, without a second of imports."""


def test_drawn_command_lines_end_as_promised(tmp_path):
    """A hundred new ones of all verbs with a number that cannot be, and some of any kind."""
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    found = sweep(1, 100, wrong, wrong=True)
    assert not found.failures, describe(found)
    assert found.endings == {"code 2": 100}
    for verb in NO_TRAINING:
        place = tmp_path / verb
        place.mkdir()
        found = sweep(1, 8, place, only=verb)
        assert not found.failures, describe(found)


@pytest.mark.slow
def test_two_thousand_command_lines(tmp_path):
    """Of all verbs and kinds, in a process of its own."""
    command = [sys.executable, "-m", "tests.adversary.options", "--cases", "2000", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_the_same_seed_draws_the_same_lines():
    """A case is repeated by its seed and number; another seed draws others."""
    known = commands()
    drawn = [[str(draw(random.Random(f"{seed} {number}"), known)) for number in range(20)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_every_number_of_every_verb_has_bounds():
    """No option takes a number without a declared unit and end: ``inf``, ``nan`` and 10**23 have no way in."""
    seen = 0
    for path, command in commands():
        for item in command.params:
            if isinstance(item, click.Option) and is_number(item):
                seen += 1
                assert hasattr(item.type, "quantity"), f"{' '.join(path)} {item.opts[0]}"
    assert seen > 100


def test_the_judge_notices():
    """The control: a traceback, another code, a start, two messages, a long line, JSON that is none."""
    good = Ending(code=2, err="reading\n\nunisono forecast: no.\n")
    case = Case(words=("forecast", "--json"), is_wrong=True, config="")
    assert judge(case, good) == []
    for bad in (
        Ending(code=2, err="Traceback (most recent call last):\nunisono forecast: no.\n"),
        Ending(code=1, err="unisono forecast: no.\n"),
        Ending(code=2, err="unisono forecast: no.\nand more\n"),
        Ending(code=2, err=""),
        Ending(code=2, err=f"unisono forecast: {'x' * 5000}\n"),
        Ending(code=2, err="unisono forecast: \x1b[31m\n"),
        Ending(reached="os.fork"),
        Ending(error="still at work"),
    ):
        assert judge(case, bad), bad
    fine = Case(words=("forecast", "--json"), is_wrong=False, config="")
    assert judge(fine, Ending(code=0, out='{"a": 1}')) == []
    assert judge(fine, Ending(code=0, out='{"a": NaN}'))
    assert judge(fine, Ending(reached="subprocess.Popen")) == []


def test_the_guard_stops_what_would_start():
    """The control: armed, it lets no process begin; else it lets everything pass."""
    guard = Guard()
    guard.armed = True
    try:
        for start in (os.fork, lambda: subprocess.Popen(["true"]), lambda: os.execv("/bin/true", ["true"])):
            with pytest.raises(Reached):
                start()
    finally:
        guard.armed = False
    assert subprocess.run(["true"], check=True).returncode == 0
    assert io.StringIO("other events pass").read()
