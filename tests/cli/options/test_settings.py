"""Settings in one form for all verbs: numbers with bounds, paths that can be, JSON that is JSON."""

import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from unisono.cli.options.settings import PATH, number
from unisono.options.quantities import Amount, Count


@click.command()
@click.option("--count", "-c", type=number(Count(1, 10, "steps")), default=2, show_default=True, help="Some.")
@click.option("--rate", type=number(Amount(0, 1, above=True)), help="More.")
@click.option("--where", type=PATH)
def command(**given):
    """Print what was understood."""
    click.echo(json.dumps(given, sort_keys=True))


def asked(*arguments):
    return CliRunner().invoke(command, arguments)


def test_numbers_are_read_by_their_quantity():
    """The default too; --help shows the bounds."""
    assert asked("--rate", "5e-1", "-c", "+3").stdout == '{"count": 3, "rate": 0.5, "where": null}\n'
    assert '"count": 2' in asked().stdout
    text = " ".join(asked("--help").stdout.split())
    assert "[default: 2; 1 to 10]" in text
    assert "above 0, at most 1]" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-c", "11"), "expected --count as a whole number of steps from 1 to 10, got 11."),
        (("--count=", "--rate", "1"), "expected --count as a whole number of steps from 1 to 10, got ''."),
        (("--rate", "nan"), "expected --rate as a number above 0, at most 1, got 'nan'."),
        (("--where", ""), "expected a path, got an empty text. Hint: is a variable of the shell empty?"),
        (("--where", "a\0b"), "expected a path that a file system can have, got 'a\\x00b'."),
        (("--where", "x" * 256), "expected a path that a file system can have"),
        (("--where", "x/" * 3000), "expected a path that a file system can have"),
    ],
)
def test_what_cannot_be_is_wrong_usage(arguments, said):
    """Code 2, with the option's name and what was got."""
    done = asked(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_path_may_hold_any_other_bytes(tmp_path):
    """Names that are no UTF-8 go through, and out again as they came."""
    name = os.fsdecode(b"caf\xe9.py")
    (tmp_path / name).write_text("")
    place = os.fsencode(tmp_path / name)
    command = [sys.executable, "-m", "unisono", "launch", "mpi", "-n", "2", "--dry-run", place]
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "PYTHONUTF8": "1"})
    assert done.returncode == 0, done.stderr
    assert b"caf\xe9.py" in done.stdout
