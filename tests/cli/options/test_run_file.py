"""Run files: defaults from TOML, the command line wins, what a run was started with gives the same run again."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from unisono.cli import train as verb
from unisono.cli.options.run_file import read_run_file
from unisono.experiments.job import describe_run_file
from unisono.recipes.catalog import Options
from unisono.strategies.catalog import find

FILE = """\
# a small job
recipe = "digits"
epochs = 2
batch-size = 20
replicas = 4
workers = 1
strategy = "exact"
shares = [1]
detail = true
"""


def planned(monkeypatch, *arguments: str) -> tuple[int, str, dict]:
    """Return exit code, output, and what would be run."""
    seen = {}

    def keep(recipe, as_json, output, given):
        seen.update({"recipe": recipe, **given})

    monkeypatch.setattr(verb, "_train", keep)
    result = CliRunner().invoke(verb.train, list(arguments))
    return result.exit_code, result.output, seen


def test_a_file_gives_defaults_and_the_command_line_wins(tmp_path, monkeypatch):
    """Keys may be written with - or _; what is typed wins, also the recipe."""
    file = tmp_path / "run.toml"
    file.write_text(FILE)
    code, told, seen = planned(monkeypatch, "--config", str(file))
    assert (code, told) == (0, "")
    assert (seen["recipe"], seen["epochs"], seen["batch_size"], seen["workers"]) == ("digits", 2, 20, "1")
    assert (seen["shares"], seen["detail"], seen["seed"]) == ("1", True, None)
    _, _, seen = planned(monkeypatch, "mnist", "--config", str(tmp_path), "--epochs", "7", "--seed", "3")
    assert (seen["recipe"], seen["epochs"], seen["batch_size"], seen["seed"]) == ("mnist", 7, 20, 3)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("epoch = 3", ("line 2", "unknown key 'epoch'", "did you mean 'epochs'?", "batch_size, bf16")),
        ("epochs = 'three'", ("line 2", "expected epochs as a whole number of epochs from 1 to", "got 'three'")),
        ("epochs = true", ("line 2", "got True (bool)")),
        ("lr = 'fast'", ("line 2", "expected lr as a number above 0")),
        ("epochs = 1e3", ("line 2", "expected epochs as a whole number", "got 1000.0")),
        ("lr = nan", ("line 2", "expected lr as a number above 0", "got nan")),
        ("lr = -inf", ("line 2", "expected lr as a number above 0", "got -inf")),
        ("num-workers = 100000000000000000000000", ("line 2", "processes from 0 to 1,024", "got 100000000000000000")),
        ("batch-size = 4\nbatch_size = 8", ("line 3", "'batch_size' stands there twice, with - and with _")),
        ("epochs = " + "[" * 5000, ("nested without end", "one option a line")),
        ("x = '" + "x" * 70_000 + "'", ("expected at most 65,536 bytes",)),
        ("detail = 1", ("line 2", "expected detail as true or false, got 1")),
        ("data = {a = 1}", ("line 2", "data: expected a text")),
        ("epochs = ", ("is not TOML", "line 2")),
        ("[recipe]\nname = 'digits'", ("line 2", "recipe: expected a text")),
    ],
)
def test_a_wrong_entry_is_named_with_its_line(tmp_path, monkeypatch, line, told):
    """File, line, key and what is allowed; exit code 2 before anything starts."""
    file = tmp_path / "job.toml"
    file.write_text(f"# first line\n{line}\n")
    code, output, seen = planned(monkeypatch, "digits", "--config", str(file))
    assert (code, seen) == (2, {})
    output = " ".join(output.split())
    assert str(file) in output
    assert all(part in output for part in told), output


def test_no_file_is_said(tmp_path, monkeypatch):
    """A directory that is no run directory is told from a run."""
    code, output, _ = planned(monkeypatch, "digits", "--config", str(tmp_path))
    assert code == 2
    assert "run.toml: No such file" in " ".join(output.split())
    assert "Hint: a TOML file" in " ".join(output.split())
    (tmp_path / "program.json").write_text("{}")
    output = planned(monkeypatch, "digits", "--config", str(tmp_path))[1]
    assert "no recipe made this run, but a program" in " ".join(output.split())


def test_what_is_written_is_read_back(tmp_path):
    """Every option that is set, strange texts included, gives the same options again."""
    options = Options(
        recipe="text", model="gcnn", epochs=3, batch_size=16, replicas=2, seed=-5, text_column="tëxt", lr=1e-5,
        data=str(tmp_path / 'a "b"\\é\n.csv'), bf16=True, out="elsewhere",
        strategy=find("ps_async", {"max_staleness": "3"}),
    )  # fmt: skip
    file = tmp_path / "run.toml"
    file.write_text(describe_run_file(options))
    found = read_run_file(file, verb.train.params)
    assert "out" not in found
    strategy = find(found.pop("strategy"), {"max_staleness": found.pop("max_staleness")})
    own = {name: found.pop(name) for name in list(found) if name not in Options.__slots__}  # of the strategy
    assert find("ps_async", {"max_staleness": 3, **own}) == strategy == options.strategy
    assert Options(**found, out="elsewhere", strategy=strategy) == options


def test_a_run_is_repeated_from_its_directory(tmp_path, here):
    """The fingerprint of `--config RUN` is the run's own; other settings on top give another."""

    def run_job(*arguments: str) -> dict:
        result = CliRunner().invoke(verb.train, [*arguments, "-n", "1", "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.splitlines()[-1])

    settings = ("--limit", "60", "--epochs", "1", "--batch-size", "20", "--replicas", "2", "--seed", "4")
    first = run_job("digits", *settings, "--out", str(tmp_path / "run"))
    again = run_job("--config", str(tmp_path / "run"), "--out", str(tmp_path / "again"))
    other = run_job("--config", str(tmp_path / "run"), "--seed", "5")
    assert again["fingerprint"] == first["fingerprint"] != other["fingerprint"]
    written = [Path(tmp_path, name, "run.toml").read_text() for name in ("run", "again")]
    assert written[0] == written[1]
    assert isinstance(verb.train, click.Command)
